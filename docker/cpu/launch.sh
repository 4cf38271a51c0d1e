#!/usr/bin/env bash
# llmb on the CPU of this machine: docker/cpu/launch.sh run --precision BF16
set -euo pipefail
# shellcheck source=docker/launch_lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/../launch_lib.sh"

device_flags() {
    flags+=(--env OMP_NUM_THREADS)
}

launch cpu "$@"
