"""Compares two runs: ratios of their figures, a rank test, and a conclusion in words."""

from __future__ import annotations

from dataclasses import dataclass

from llmb.comparison.comparability import ConditionDifference, Weight, differences
from llmb.comparison.figures import Run, run_of, times_per_token
from llmb.comparison.ratio import Ratio, ratio_of
from llmb.comparison.significance import RankTest, rank_test
from llmb.measure import statistics
from llmb.records.run_record import RunRecord

SIGNIFICANT = 0.05


@dataclass(frozen=True)
class LeftOutRun:
    """A figure or test that was left out of the comparison, with the reason."""

    name: str
    reason: str


@dataclass(frozen=True)
class Comparison:
    """``other`` beside ``base``. Refused: no ratios, no test, no conclusion."""

    base: Run
    other: Run
    differences: tuple[ConditionDifference, ...]
    ratios: tuple[Ratio, ...]
    left_out: tuple[LeftOutRun, ...]
    steps: RankTest | None
    #: Sentences: the differences shown, and the limits of the evidence.
    conclusion: tuple[str, ...]

    @property
    def refusals(self) -> tuple[ConditionDifference, ...]:
        """The reasons for not comparing the runs; empty if compared."""
        return tuple(one for one in self.differences if one.weight is Weight.REFUSED)

    def ratio(self, name: str) -> Ratio | None:
        """Return the ratio of figure ``name``, None if the figure was not compared."""
        return next((ratio for ratio in self.ratios if ratio.name == name), None)


def compare(base: RunRecord, other: RunRecord) -> Comparison:
    """Return ``other`` beside ``base``.

    ``comparability`` lists the differences that are refused or noted, item by item. Intervals come
    from repeats and fence blocks (``ratio``), the test from raw step times (``significance``).
    Example: tokens_per_second 110 over 100 is ratio 1.1, with a 95 % interval such as 1.07 to 1.13.

    Raises:
        BundleRefusedError: a record's headline differs from the value of the record's stamps.
    """
    return compare_runs(run_of(base), run_of(other))


def compare_runs(base: Run, other: Run) -> Comparison:
    """Return ``other`` beside ``base``, both with figures already computed."""
    found = differences(base.record, other.record)
    if any(difference.weight is Weight.REFUSED for difference in found):
        return Comparison(base, other, found, (), (), None, ())
    ratios, left_out = _ratios(base, other)
    steps, why_not = _steps(base.record, other.record)
    if why_not is not None:
        left_out = (*left_out, LeftOutRun("rank test", why_not))
    comparison = Comparison(base, other, found, ratios, left_out, steps, ())
    return Comparison(base, other, found, ratios, left_out, steps, _conclusion(comparison))


def _ratios(base: Run, other: Run) -> tuple[tuple[Ratio, ...], tuple[LeftOutRun, ...]]:
    """Return the ratio of every figure that both runs have, and the figures left out."""
    ratios, left_out = [], []
    for name, figure in base.figures.items():
        against = other.figures.get(name)
        if against is None:
            left_out.append(LeftOutRun(name, "not measured in the other run"))
        elif (figure.unit, figure.basis) != (against.unit, against.basis):
            of_which = (one.basis or one.unit for one in (figure, against))
            left_out.append(LeftOutRun(name, "; against ".join(of_which)))
        elif figure.value <= 0.0 or against.value <= 0.0:
            left_out.append(LeftOutRun(name, "not above 0"))
        else:
            ratios.append(ratio_of(figure, against))
    only = (name for name in other.figures if name not in base.figures)
    left_out += [LeftOutRun(name, "not measured in the base run") for name in only]
    return tuple(ratios), tuple(left_out)


def _steps(base: RunRecord, other: RunRecord) -> tuple[RankTest | None, str | None]:
    """Return the rank test of seconds per token, or the reason for no test.

    Steps are tested if both runs stamped the steps by the same clock, unless the clock is
    ``enqueue``: Python then runs ahead of the device. Otherwise fence blocks are tested, on the
    supervisor's clock, if blocks of both runs have equally many steps.
    """
    clocks = {repeat.step_clock for one in (base, other) for repeat in one.timing.repeats}
    by_blocks = len(clocks) > 1 or "enqueue" in clocks
    of = f"steps ({min(clocks)} clock)"
    if by_blocks:
        sizes = [_block_steps(one) for one in (base, other)]
        if sizes[0] != sizes[1]:
            return None, (
                f"step stamps are of {' and '.join(sorted(clocks))} clocks, and fences stand "
                f"{sizes[0]} and {sizes[1]} steps apart"
            )
        of = "stretches between fences (supervisor's clock)"
    times = [times_per_token(one, by_blocks=by_blocks) for one in (base, other)]
    test = rank_test(times[0], times[1], of)
    return test, None if test is not None else "too few steps or fences"


def _block_steps(record: RunRecord) -> int:
    """Return the steps of the longest fence block: the last block of a window may be shorter."""
    every = (statistics.blocks(repeat) for repeat in record.timing.repeats)
    return max(block.steps for blocks in every for block in blocks)


def _conclusion(comparison: Comparison) -> tuple[str, ...]:
    """Return the conclusion, as sentences, from the throughput's interval and the rank test."""
    rate, steps = comparison.ratio("tokens_per_second"), comparison.steps
    assert rate is not None, "every run has a throughput above 0"
    found = []
    percent = f"{abs(rate.ratio - 1):.1%} {'more' if rate.ratio > 1 else 'fewer'} tokens a second"
    if rate.interval is None:
        found.append(f"{percent}: nothing shown, a figure without an interval")
    elif rate.outcome == "no difference shown":
        found.append("no difference in tokens a second is shown: the interval holds 1")
    elif steps is not None and steps.p_value >= SIGNIFICANT:
        found.append(
            f"{percent} by the interval, not by the steps' own times (p {steps.p_value:.2g}): "
            "no difference is shown until both agree"
        )
    else:
        found.append(f"{percent}: a difference is shown")
    counts = [len(run.record.timing.repeats) for run in (comparison.base, comparison.other)]
    if min(counts) < 2:
        found.append(
            "one process of a run: what differs from process to process is not in the interval; "
            "--repeats 3 puts it there"
        )
    apart = [one for one in comparison.differences if one.weight is Weight.NOT_COMPARABLE]
    if apart:
        items = ", ".join(dict.fromkeys(one.item for one in apart))
        found.append(f"not comparable ({items}): which is the better system is not shown")
    return tuple(found)
