"""What the tests of llmb-rocm share."""

from __future__ import annotations

import sys
from pathlib import Path

# At the end, so that an installed llmb (tox) is tested and not the sources beside the tests.
sys.path.append(str(Path(__file__).resolve().parents[3]))
