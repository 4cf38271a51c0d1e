"""Estimates the remaining time of a sweep from the times of finished points."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from llmb.records.run_record import RunRecord
from llmb.records.sweep_overview import Point


@dataclass(frozen=True)
class Took:
    """The time of one finished point, in seconds."""

    point: Point
    batch_size: int
    seconds: float
    #: Part of ``seconds`` spent in warmup and timed steps.
    stepping_s: float

    @classmethod
    def of(cls, point: Point, record: RunRecord, seconds: float) -> Took:
        """Return the time of ``point``, with the stepping time from the run's ``record``."""
        stepping = sum(
            (each.stop_ns - each.start_ns) / 1e9 * (1 + each.warmup_steps / each.timed_steps)
            for each in record.timing.repeats
        )
        return cls(point, record.config.batch_size, seconds, min(stepping, seconds))


def left_s(coming: Sequence[Point], took: Sequence[Took]) -> float | None:
    """Return the estimated seconds of the points in ``coming``, None before a first point ends."""
    return sum(_expected_s(point, took) for point in coming) if took else None


def _expected_s(point: Point, took: Sequence[Took]) -> float:
    """Return the expected seconds of ``point``: stepping time grows with the batch, the rest stays.

    Scaled from the nearest finished batch size of the same precision, or of any precision if none
    is finished; the latest point wins a tie. Example: a point at batch size 4 took 60 s, 20 s of
    stepping; batch size 8 should take 80 s.
    """
    own = [each for each in took if each.point.precision == point.precision] or took
    if point.batch_size is None:
        return own[-1].seconds
    size = point.batch_size
    nearest = min(reversed(own), key=lambda each: abs(each.batch_size - size))
    return nearest.seconds + nearest.stepping_s * (size / nearest.batch_size - 1)
