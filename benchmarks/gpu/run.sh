#!/usr/bin/env bash
# Everything llmb does on one GPU, in one call of under ten minutes; what does not fit is skipped:
#     benchmarks/gpu/run.sh [OUTPUT_FOLDER] [arguments of official.py]
#     benchmarks/gpu/run.sh results --plugin cuda --limit 585
#     benchmarks/gpu/run.sh more --batch-size 64 --only BF16,FP16,TF32,FP32
# Needs a Python whose torch sees the GPU (PYTHON=...), and pip; where no package index can be
# reached, WHEELS=FOLDER holds the wheels of what is missing. Nothing that is installed is replaced.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/../.."
output=${1:-runs-gpu}
shift || true
python=${PYTHON:-python3}
started=$(date +%s)

site=$(mktemp -d)
trap 'rm -rf -- "$site"' EXIT
if [ -n "${WHEELS:-}" ]; then
    "$python" -m pip install --quiet --no-index --no-deps --target "$site" "$WHEELS"/*.whl
fi
# Seen through PYTHONPATH, so that the environment keeps its torch and is left as it was.
export PYTHONPATH="$site${PYTHONPATH:+:$PYTHONPATH}"
"$python" benchmarks/gpu/link.py "$site" llmb plugins/llmb-cuda plugins/llmb-rocm plugins/llmb-xpu

"$python" benchmarks/gpu/official.py "$output" --started "$started" "$@"
