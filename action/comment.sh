#!/usr/bin/env bash
# Write the summary as a comment on the pull request; a comment from before is written anew. A token
# that may not comment (a pull request of a fork) is no failure of the measurement.
#
#   FOLDER=llmb-history PULL=https://github.com/acme/llm/pull/7 GH_TOKEN=... action/comment.sh
set -euo pipefail
if ! gh pr comment "$PULL" --edit-last --create-if-none --body-file "$FOLDER/summary.md"; then
  echo "::notice::llmb could not comment on the pull request: the summary has the decision"
fi
