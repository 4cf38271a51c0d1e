#!/usr/bin/env bash
# Make one run, and leave it in FOLDER beside the history. An INVALID run ends with 5.
#
#   FOLDER=llmb-history PRESET=debug action/measure.sh
set -euo pipefail
words=(run --quiet --output-dir "$FOLDER")
[ -z "${WORKLOAD:-}" ] || words+=(--workload "$WORKLOAD")
[ -z "${PRESET:-}" ] || words+=(--preset "$PRESET")
[ -z "${PRECISION:-}" ] || words+=(--precision "$PRECISION")
[ -z "${PLUGIN:-}" ] || words+=(--plugin "$PLUGIN")
[ -z "${REPEATS:-}" ] || words+=(--repeats "$REPEATS")
if [ -n "${ARGUMENTS:-}" ]; then
  # Words of the workflow's author, split on spaces on purpose: options of llmb run.
  read -r -a more <<< "$ARGUMENTS"
  words+=("${more[@]}")
fi
mkdir -p "$FOLDER"
rm -f "$FOLDER/run"
code=0
llmb "${words[@]}" || code=$?
# The newest run directory: the name begins with the time.
newest=""
for record in "$FOLDER"/*/record.json; do
  [ -e "$record" ] && newest=${record%/record.json}
done
[ -z "$newest" ] || printf '%s\n' "$newest" > "$FOLDER/run"
exit "$code"
