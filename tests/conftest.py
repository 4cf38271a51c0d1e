"""What all tests share: the helpers in ``tests`` can be imported however pytest was started."""

from __future__ import annotations

import os
import random
import sys
import time
from pathlib import Path

import pytest

# At the end, so that an installed llmb (tox) is tested and not the sources beside the tests.
sys.path.append(str(Path(__file__).resolve().parent.parent))

#: Until when further tests begin, in seconds since 1970; CI on a slow machine ends in time.
_UNTIL = "LLMB_TESTS_UNTIL"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Where there is not time for all further tests, take others in every run of CI."""
    until = os.environ.get(_UNTIL)
    if until and all(item.get_closest_marker("further") for item in items):
        random.Random(until).shuffle(items)  # the same in all workers of pytest-xdist


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a further test that would begin too late."""
    until = os.environ.get(_UNTIL)
    if until and item.get_closest_marker("further") and time.time() > float(until):
        pytest.skip("no time was left for further tests")
