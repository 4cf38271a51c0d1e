#!/usr/bin/env bash
# llmb on the Intel GPUs of this machine: docker/intel/launch.sh run --precision BF16
set -euo pipefail
# shellcheck source=docker/launch_lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/../launch_lib.sh"

device_flags() {
    local nodes=("$dev"/dri/render*)
    need_devices "is the i915 or xe driver loaded?" "${nodes[@]}"
    device_groups "${nodes[@]}"
    flags+=(
        --device /dev/dri
        --env ZE_AFFINITY_MASK
        --env ONEAPI_DEVICE_SELECTOR
    )
}

launch intel "$@"
