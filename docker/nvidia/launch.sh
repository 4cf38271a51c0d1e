#!/usr/bin/env bash
# llmb on the NVIDIA GPUs of this machine: docker/nvidia/launch.sh run --precision BF16
set -euo pipefail
# shellcheck source=docker/launch_lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/../launch_lib.sh"

device_flags() {
    if [[ ! -e $dev/dxg ]]; then # the one node under WSL
        need_devices "is the driver of the GPU loaded?" "$dev/nvidiactl"
    fi
    if [[ $podman == yes ]]; then
        flags+=(--device nvidia.com/gpu=all) # by CDI: `--gpus` is young in podman
    else
        flags+=(--gpus all)
    fi
    # NVIDIA's advice for this image: room in shared memory, of which Docker gives 64 MB, and no
    # limit on locked memory and the stack. Only root can raise the limits.
    flags+=(--shm-size 8g)
    if [[ $rootless == no ]]; then
        flags+=(--ulimit memlock=-1 --ulimit stack=67108864)
    fi
    flags+=(--env CUDA_VISIBLE_DEVICES)
}

launch nvidia "$@"
