"""What all tests share: the helpers in ``tests`` can be imported, and what plain `tox` makes."""

from __future__ import annotations

import gc
import os
import random
import sys
import time
from collections.abc import Generator
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parent
# At the end, so that an installed llmb (tox) is tested and not the sources beside the tests.
sys.path.append(str(TESTS.parent))

#: Tests in these folders start whole runs: they are `full` unless they say `quick`.
WHOLE_RUNS = frozenset({"cheats", "distributed", "e2e", "page"})

#: Until when a test of `full` begins, in seconds since 1970: on a slow machine CI ends in time, and
#: its table says how many were left out.
UNTIL = "LLMB_TESTS_UNTIL"


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Look for no garbage in what is imported and collected, then or later: all of it stays."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> Generator[None, object, object]:
    """Mark what plain `tox` leaves to `tox run -e full`, before -m looks at the marks."""
    for item in items:
        below = item.path.relative_to(TESTS).parts[0] if item.path.is_relative_to(TESTS) else ""
        if below in WHOLE_RUNS and item.get_closest_marker("quick") is None:
            item.add_marker("full")
    done = yield
    until = os.environ.get(UNTIL)
    if until and all(item.get_closest_marker("full") for item in items):
        # Others are left out next time. The same order in all workers; a file's tests share runs.
        files, draw = sorted({item.path for item in items}), random.Random(until)
        draw.shuffle(files)
        draw.shuffle(items)
        items.sort(key=lambda item: files.index(item.path))
    return done


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Leave a test of `full` out that would begin too late."""
    until = os.environ.get(UNTIL)
    if until and item.get_closest_marker("full") and time.time() > float(until):
        pytest.skip("no time was left; tox run -e full makes all")
