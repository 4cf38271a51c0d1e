#!/usr/bin/env bash
# Print the keys of the cache: a digest of the branch (a cache key may hold no comma), one key for
# this run, and the beginning of the keys of the baseline's branch.
#
#   BRANCH=topic BASELINE=main SETTINGS='debug FP32' RUN=1-1 GITHUB_OUTPUT=/dev/stdout action/key.sh
set -euo pipefail
digest() {
  python -c 'import hashlib, os, sys; print(hashlib.sha256(os.fsencode(sys.argv[1])).hexdigest()[:16])' "$1"
}
{
  echo "own=llmb-history-$(digest "$SETTINGS")-$(digest "$BRANCH")-$RUN"
  echo "own_prefix=llmb-history-$(digest "$SETTINGS")-$(digest "$BRANCH")-"
  echo "baseline_prefix=llmb-history-$(digest "$SETTINGS")-$(digest "$BASELINE")-"
} >> "$GITHUB_OUTPUT"
