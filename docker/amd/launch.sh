#!/usr/bin/env bash
# llmb on the AMD GPUs of this machine: docker/amd/launch.sh run --precision BF16
set -euo pipefail
# shellcheck source=docker/launch_lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/../launch_lib.sh"

device_flags() {
    local nodes=("$dev/kfd" "$dev"/dri/render*)
    need_devices "is the amdgpu driver loaded?" "${nodes[@]}"
    device_groups "${nodes[@]}"
    flags+=(
        --device /dev/kfd
        --device /dev/dri
        # AMD's advice ("enables memory mapping"): the default profile refuses the calls that place
        # host memory near a GPU.
        # https://rocm.docs.amd.com/projects/install-on-linux/en/latest/how-to/docker.html
        --security-opt seccomp=unconfined
        --shm-size 8g # Docker gives 64 MB
        --env HIP_VISIBLE_DEVICES
        --env ROCR_VISIBLE_DEVICES
    )
}

launch amd "$@"
