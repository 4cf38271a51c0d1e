#!/usr/bin/env bash
# Packs what run.sh needs of this commit into one archive of 0.85 MB (the work tree has 150 MB):
#     benchmarks/gpu/pack.sh gpu.tar.gz
# and on the machine with the GPU:
#     tar xzf gpu.tar.gz && llmb-gpu/benchmarks/gpu/run.sh results
set -euo pipefail

archive=$(realpath -m -- "${1:?usage: pack.sh ARCHIVE.tar.gz}")
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
if ! git diff --quiet HEAD -- llmb plugins benchmarks/gpu; then
    echo "pack.sh: there are changes that are not committed: they are left out" >&2
fi
git archive --format=tar.gz --prefix=llmb-gpu/ --output="$archive" HEAD \
    llmb plugins benchmarks/gpu tests/cheats tests/e2e/harness.py tests/patience.py pyproject.toml README.md LICENSE
