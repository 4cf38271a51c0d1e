"""The clock of a run: the one that its record names, in whole nanoseconds."""

from __future__ import annotations

import time
from datetime import timedelta

import pytest

from llmb import clock


def test_the_clock_that_is_read_is_the_one_that_the_record_names(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[int] = []
    # Asked and not compared: on some machines two clocks agree by chance.
    monkeypatch.setattr(time, "clock_gettime_ns", lambda which: asked.append(which) or 12_345)
    assert clock.now_ns() == 12_345
    assert asked == [getattr(time, clock.NAME)]


def test_time_goes_on_as_on_the_clock_of_that_name() -> None:
    which = getattr(time, clock.NAME)
    before, now, after = time.clock_gettime_ns(which), clock.now_ns(), time.clock_gettime_ns(which)
    assert before <= now <= after


@pytest.mark.skipif(not hasattr(time, "CLOCK_MONOTONIC_RAW"), reason="no raw clock here")
def test_where_there_is_a_clock_that_nobody_slews_it_is_the_one() -> None:
    assert clock.NAME == "CLOCK_MONOTONIC_RAW"


def test_the_date_is_in_utc_and_to_the_second() -> None:
    now = clock.utc_now()
    assert (now.utcoffset(), now.microsecond) == (timedelta(0), 0)
