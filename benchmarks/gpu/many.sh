#!/usr/bin/env bash
# Two and more GPUs of one machine, in one call of under ten minutes:
#     benchmarks/gpu/many.sh [OUTPUT_FOLDER] [arguments of official.py]
#     benchmarks/gpu/many.sh results --devices 4
#     benchmarks/gpu/many.sh rehearsal --devices 2 --plugin cpu --device cpu --preset debug
# The examination of a node, DDP and FSDP under the audit, official BF16 runs, scaling from 1 to all.
# The rest is as in run.sh.
set -euo pipefail

output=${1:-runs-gpus}
shift || true
exec "$(dirname "${BASH_SOURCE[0]}")/run.sh" "$output" --devices all "$@"
