#!/usr/bin/env bash
# Install llmb from the checkout of this action, and packages of the user's own (plugins).
#
#   ACTION_PATH=. PACKAGES='./my-plugin' action/install.sh
set -euo pipefail
python -m pip install -c "$ACTION_PATH/constraints.txt" "${ACTION_PATH}[history]"
if [ -n "${PACKAGES:-}" ]; then
  # Words of the workflow's author, split on spaces on purpose: pip's own arguments.
  # shellcheck disable=SC2086
  python -m pip install $PACKAGES
fi
