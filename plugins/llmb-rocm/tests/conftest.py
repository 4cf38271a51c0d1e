"""Shared parts of llmb-rocm's tests."""

from __future__ import annotations

import sys
from pathlib import Path

# At the end, so that tox tests an installed llmb and not the sources beside the tests.
sys.path.append(str(Path(__file__).resolve().parents[3]))
