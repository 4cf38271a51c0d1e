#!/usr/bin/env bash
# Compare the run that measure.sh left with the last runs of BASELINE, and write every form of the
# decision into FOLDER: summary.md, junit.xml, decision.json, history.html. Ends with 7 for an
# outcome of FAIL_ON (regression, undecided; several by spaces), after everything is written.
#
#   FOLDER=llmb-history BASELINE=main BY=3% FAIL_ON=regression action/compare.sh
set -euo pipefail
run=$(cat "$FOLDER/run")
words=(compare --baseline "branch:$BASELINE" --history "$FOLDER/history.jsonl")
[ -z "${BY:-}" ] || words+=(--by "$BY")
[ -z "${LAST:-}" ] || words+=(--last "$LAST")
[ -z "${MEASURE:-}" ] || words+=(--measure "$MEASURE")
fail=()
for outcome in ${FAIL_ON:-}; do
  fail+=(--fail-on "$outcome")
done
llmb "${words[@]}" --format github "$run" > "$FOLDER/summary.md"
llmb "${words[@]}" --format json "$run" > "$FOLDER/decision.json"
llmb history show --file "$FOLDER/history.jsonl" --html "$FOLDER/history.html" > "$FOLDER/history.txt"
llmb "${words[@]}" ${fail[@]+"${fail[@]}"} --format junit "$run" > "$FOLDER/junit.xml" || true
if [ -n "${GITHUB_STEP_SUMMARY:-}" ]; then
  cat "$FOLDER/summary.md" >> "$GITHUB_STEP_SUMMARY"
fi
llmb "${words[@]}" ${fail[@]+"${fail[@]}"} "$run"
