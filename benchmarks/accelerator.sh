#!/usr/bin/env bash
# The built-in `generic` plugin on a real accelerator, in one call of under ten minutes:
#     benchmarks/accelerator.sh [OUTPUT_FOLDER]
# Needs a torch that sees the device. Leaves run directories, and a summary of each, in the folder.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
output=${1:-runs}
python=${PYTHON:-python3}
llmb() { "$python" -m llmb "$@"; }

"$python" -m pip install --quiet . || echo "llmb was not installed: running from the checkout"
llmb plugin list
llmb calibrate --plugin generic --precision BF16 --batch-size 32
llmb run --plugin generic --preset debug --output-dir "$output"
llmb run --plugin generic --precision BF16 --batch-size auto --timed-steps 100 --output-dir "$output"
llmb run --plugin generic --precision FP32 --batch-size 16 --output-dir "$output"
