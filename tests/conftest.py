"""What all tests share: the helpers in ``tests`` can be imported however pytest was started."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

# At the end, so that an installed llmb (tox) is tested and not the sources beside the tests.
sys.path.append(str(Path(__file__).resolve().parent.parent))

#: Until when further tests begin, in seconds since 1970; CI on a slow machine ends in time.
_UNTIL = "LLMB_TESTS_UNTIL"


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a further test that would begin too late."""
    until = os.environ.get(_UNTIL)
    if until and item.get_closest_marker("further") and time.time() > float(until):  # noqa: TID251
        pytest.skip("no time was left for further tests")
