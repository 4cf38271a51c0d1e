#!/usr/bin/env bash
# Everything llmb does on one GPU, in one call of under ten minutes; what does not fit is skipped:
#     benchmarks/gpu/run.sh [OUTPUT_FOLDER] [arguments of official.py]
#     benchmarks/gpu/run.sh results --plugin cuda --limit 585
#     benchmarks/gpu/run.sh more --batch-size 96 --only BF16,FP16,TF32,FP32
#     benchmarks/gpu/run.sh rehearsal --plugin cpu --device cpu --preset debug
# OUTPUT_FOLDER gets summary.txt, summary.json and results.zip after each stage, and may be looked at,
# or the call be killed, at any second. Run directories and compiled code lie in a scratch folder.
# The stage "links" describes PCI Express, network cards, NUMA and (by nvidia-smi, rocm-smi or xpu-smi)
# the links between devices: its out.txt has the tools' raw outputs, for a parser that misses something.
# With several devices (many.sh) the summary names the bus bandwidth of an NCCL all-reduce of each run;
# records in results.zip have all sizes under "interconnect". No lease has shown either yet.
# Needs a Python whose torch sees the GPU (PYTHON=...), and pip. What else is missing is named in one
# line (exit code 3), with the command that fetches the wheels where there is a package index; then
# WHEELS=FOLDER installs them beside the environment. Nothing that is installed is replaced.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
output=${1:-runs-gpu}
shift || true
python=${PYTHON:-python3}
started=$(date +%s)

scratch=$(mktemp -d)
trap 'rm -rf -- "$scratch"' EXIT
site=$scratch/site
mkdir "$site"
if [ -n "${WHEELS:-}" ]; then
    "$python" -m pip install --quiet --no-index --no-deps --no-compile --target "$site" "$WHEELS"/*.whl
fi
# Seen through PYTHONPATH, so that the environment keeps its torch and is left as it was.
export PYTHONPATH="$site${PYTHONPATH:+:$PYTHONPATH}"
"$python" "$here/link.py" "$site" llmb plugins/llmb-cuda plugins/llmb-rocm plugins/llmb-xpu

"$python" "$here/official.py" "$output" --started "$started" --scratch "$scratch/work" "$@"
