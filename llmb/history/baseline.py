"""Decides whether a run is slower than a baseline: a run, or the last runs of a branch.

Machines change under a benchmark: another machine, a neighbour, a lower clock. Each run measures
its ceiling (the rate of the model's matrix products alone), and the share of the ceiling cancels
a change that slows both. The share has noise of its own. ``measure`` of the decision:

- *Three or more runs of the same machine in the baseline.* Tokens/s, unless the share scatters
  less than 0.8 times as much from run to run: then the machine moved, and the share decides. If
  tokens/s decide and the ceiling fell by more than its own scatter, the share must have fallen too.
- *Three or more machines in the baseline.* The share: each machine gives one value, its median.
- *One or two runs of the same machine.* As above, with the intervals of the single runs.
- *Only other machines, fewer than three.* The share, with a known scatter between machines.
"""

from __future__ import annotations

import math
import statistics as plain
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from pydantic import Field

from llmb.comparison.figures import Figure
from llmb.comparison.ratio import ratio_of
from llmb.config import JsonFile
from llmb.history.line import HistoryLine
from llmb.history.series import Measure, value_of
from llmb.measure.statistics import Spread, student_t975
from llmb.records.finding import Verdict

# Version history, one line per change.
# llmb.baseline/1  2026-11  first version.
SCHEMA: Literal["llmb.baseline/1"] = "llmb.baseline/1"

Outcome = Literal["regression", "improvement", "no change shown", "not decided"]
#: ``auto``: as above. ``tokens``: never the ceiling, which a plugin can lower. ``share``: always.
Chosen = Literal["auto", "tokens", "share"]
#: Fewest runs whose scatter is a measure of the noise.
FEWEST = 3
#: Standard deviation of ln(share of ceiling) between machines: llama-1.4b in BF16 reached 64.4 % on
#: one processor and 79.5 % on another (submissions/), ln(79.5 / 64.4) / sqrt(2).
_BETWEEN_MACHINES = 0.15
_Z975 = 1.96
#: Largest scatter of the share, over that of tokens/s, with which the share decides.
_STEADIER = 0.8
#: Least change of the ceiling that counts.
_CEILING_MOVED = 0.03
_MOST_LOG = 30.0


class BaselineDecision(JsonFile):
    """One run beside its baseline; changes are relative, such as -0.05 for 5 % fewer."""

    schema_: Literal["llmb.baseline/1"] = Field(alias="schema", default=SCHEMA)
    run: HistoryLine
    #: The name of the baseline, and the runs that were compared with, the oldest first.
    baseline: str
    runs: tuple[HistoryLine, ...]
    outcome: Outcome
    measure: Measure
    #: Of the run's value by ``measure``, over the baseline's; None: not decided.
    change: float | None
    ci95: tuple[float, float] | None
    #: Of tokens/s and of the ceiling, over the medians of ``runs``; None: not measured.
    tokens_change: float | None
    ceiling_change: float | None
    #: The smallest step that counts (``--by``).
    by: float
    #: The decision as one sentence, then remarks.
    conclusion: str
    notes: tuple[str, ...]


@dataclass(frozen=True)
class _LevelChange:
    """A change as a logarithm, with half the width of its 95 % interval."""

    measure: Measure
    log: float
    half: float
    runs: tuple[HistoryLine, ...]

    def outcome(self, by: float) -> Outcome:
        """Return the outcome: a change is shown if the interval leaves out 0 and ``by`` is met."""
        if self.log + self.half < 0 and self.log <= math.log1p(-by):
            return "regression"
        if self.log - self.half > 0 and self.log >= math.log1p(by):
            return "improvement"
        return "no change shown"


def decide(
    run: HistoryLine,
    baseline: str,
    lines: Sequence[HistoryLine],
    *,
    by: float = 0.0,
    chosen: Chosen = "auto",
) -> BaselineDecision:
    """Return whether ``run`` is slower or faster than ``lines``.

    Args:
        run: the run.
        baseline: the name of the baseline, for people.
        lines: the runs of the baseline, the oldest first. Other work, INVALID runs and ``run``
            itself are left out.
        by: the smallest step that counts. Example: 0.03 for 3 %.
        chosen: the measure of the comparison.
    """
    if run.verdict is Verdict.INVALID:
        return _undecided(
            run, baseline, (), by, "the run is INVALID: there is no figure to compare"
        )
    others = [line for line in lines if line.run_id != run.run_id]
    valid = [line for line in others if line.verdict is not Verdict.INVALID]
    alike = [line for line in valid if line.work == run.work]
    if not alike:
        why = f"no run of this work: {_work(run)}" if others else "no run yet"
        return _undecided(run, baseline, (), by, f"the baseline {baseline} has {why}")
    found = _estimate(run, alike, chosen)
    if isinstance(found, str):
        return _undecided(run, baseline, alike, by, found)
    outcome = found.outcome(by)
    tokens, ceiling = _change(run, found.runs, _tokens), _change(run, found.runs, _ceiling)
    return BaselineDecision(
        run=run,
        baseline=baseline,
        runs=found.runs,
        outcome=outcome,
        measure=found.measure,
        change=_relative(found.log),
        ci95=(_relative(found.log - found.half), _relative(found.log + found.half)),
        tokens_change=tokens,
        ceiling_change=ceiling,
        by=by,
        conclusion=_conclusion(found, outcome, by),
        notes=tuple(_notes(run, found, tokens, ceiling)),
    )


def _undecided(
    run: HistoryLine, baseline: str, lines: Sequence[HistoryLine], by: float, why: str
) -> BaselineDecision:
    return BaselineDecision(
        run=run,
        baseline=baseline,
        runs=tuple(lines),
        outcome="not decided",
        measure="tokens/s",
        change=None,
        ci95=None,
        tokens_change=_change(run, lines, _tokens) if lines else None,
        ceiling_change=_change(run, lines, _ceiling) if lines else None,
        by=by,
        conclusion=f"not decided: {why}",
        notes=(),
    )


def _work(line: HistoryLine) -> str:
    return f"{line.workload} {line.mode}, {line.precision}, {line.plugin}, {line.settings}"


_Value = Callable[[HistoryLine], float | None]


def _tokens(line: HistoryLine) -> float | None:
    return line.tokens_per_second


def _ceiling(line: HistoryLine) -> float | None:
    return line.ceiling


def _share(line: HistoryLine) -> float | None:
    return line.fraction_of_ceiling


def _change(run: HistoryLine, lines: Sequence[HistoryLine], value: _Value) -> float | None:
    """Return the relative change of a value over the median of ``lines``, None if unknown."""
    mine, theirs = value(run), [value(line) for line in lines]
    known = [each for each in theirs if each is not None]
    return None if mine is None or not known else mine / plain.median(known) - 1


def _estimate(run: HistoryLine, lines: Sequence[HistoryLine], chosen: Chosen) -> _LevelChange | str:
    """Return the change of ``run``, or the reason for none."""
    own = [line for line in lines if line.machine == run.machine]
    if chosen == "tokens":
        return _by(run, own if own else lines, "tokens/s")
    if chosen == "share":
        return _by(run, lines, "share of ceiling")
    if len(own) >= FEWEST:
        return _on_one_machine(run, own)
    machines = {line.machine for line in lines}
    if len(machines) >= FEWEST:
        return _by(run, _medians(lines), "share of ceiling", lines)
    if own:
        return _on_one_machine(run, own)
    return _on_another_machine(run, lines)


def _medians(lines: Sequence[HistoryLine]) -> list[HistoryLine]:
    """Return one line of each machine: the line with the median share."""
    groups: dict[object, list[HistoryLine]] = {}
    for line in lines:
        if line.fraction_of_ceiling is not None:
            groups.setdefault(line.machine, []).append(line)
    return [
        sorted(one, key=lambda x: x.fraction_of_ceiling or 0)[len(one) // 2]
        for one in groups.values()
    ]


def _on_one_machine(run: HistoryLine, own: Sequence[HistoryLine]) -> _LevelChange | str:
    """Compare runs of one machine: by tokens/s, unless the machine moved."""
    by_tokens = _by(run, own, "tokens/s")
    by_share = _by(run, own, "share of ceiling")
    if isinstance(by_share, str) or isinstance(by_tokens, str):
        return by_tokens
    if len(own) >= FEWEST and _scatter(own, _share) < _STEADIER * _scatter(own, _tokens):
        return by_share
    ceiling = _ceiling_log(run, own)
    fell = ceiling is not None and ceiling < 0
    # The ceiling can excuse tokens/s that fell; no ceiling accuses tokens/s that did not fall.
    return by_share if fell and by_share.log > by_tokens.log else by_tokens


def _ceiling_log(run: HistoryLine, own: Sequence[HistoryLine]) -> float | None:
    """Return the change of the ceiling as a logarithm, None if within its noise."""
    mine, theirs = run.ceilings_flops_per_second, [line.ceiling for line in own]
    known = [each for each in theirs if each is not None]
    if mine is None or not known:
        return None
    log = math.log(max(mine) / plain.median(known))
    if len(known) >= FEWEST:
        noise = _prediction(len(known)) * _scatter(own, _ceiling)
    else:
        noise = sum(_drift(line) for line in (run, own[-1]))
    return log if abs(log) > max(noise, _CEILING_MOVED) else None


def _drift(line: HistoryLine) -> float:
    """Return how far the ceilings before and after a run lie apart, as a logarithm."""
    found = line.ceilings_flops_per_second
    return 0.0 if found is None else abs(math.log(found[1] / found[0]))


def _on_another_machine(run: HistoryLine, lines: Sequence[HistoryLine]) -> _LevelChange | str:
    """Compare with runs of one or two other machines: only a huge change can be shown."""
    shares = [line.fraction_of_ceiling for line in lines if line.fraction_of_ceiling is not None]
    if run.fraction_of_ceiling is None or not shares:
        return (
            "another machine, and a run without a ceiling: tokens/s of two machines differ anyway"
        )
    log = math.log(run.fraction_of_ceiling / plain.median(shares))
    half = _Z975 * math.sqrt(2) * _BETWEEN_MACHINES
    return _LevelChange("share of ceiling", log, half, tuple(lines))


def _by(
    run: HistoryLine,
    values: Sequence[HistoryLine],
    measure: Measure,
    shown: Sequence[HistoryLine] | None = None,
) -> _LevelChange | str:
    """Compare by ``measure``; the scatter of three or more ``values`` is the noise of a run.

    The interval is that of one further run: Student's t times the scatter, times sqrt(1 + pi / 2k)
    for k values, as a median of k values has a variance of pi / 2k (normal noise). A run whose own
    standard error is larger than the scatter counts with its own.
    """
    value = _tokens if measure == "tokens/s" else _share
    known = [line for line in values if value(line) is not None]
    mine = value(run)
    if mine is None or not known:
        return "a run without a measured ceiling"
    if len(known) < FEWEST:
        return _pair(run, known[-1], measure)
    log = math.log(mine / plain.median([value_of(line, measure) for line in known]))
    noise = _scatter(known, value)
    own = _relative_error(run)
    half = _prediction(len(known)) * max(noise, own)
    return _LevelChange(measure, log, half, tuple(shown or known))


def _prediction(count: int) -> float:
    """Return half the width of a 95 % interval for one more run, in scatters of ``count`` runs."""
    return student_t975(count - 1) * math.sqrt(1 + math.pi / (2 * count))


def _scatter(lines: Sequence[HistoryLine], value: _Value) -> float:
    """Return the standard deviation of the logarithms of a value."""
    found = [each for line in lines if (each := value(line)) is not None]
    return plain.stdev(map(math.log, found)) if len(found) > 1 else 0.0


def _relative_error(line: HistoryLine) -> float:
    """Return the relative standard error of tokens/s within the run, 0 if not measured."""
    spread = _spread(line)
    return 0.0 if spread is None else spread.error / spread.value


def _spread(line: HistoryLine) -> Spread | None:
    if line.ci95 is None or line.interval_values < 2:
        return None
    freedom = line.interval_values - 1
    half = line.ci95[1] - line.tokens_per_second
    return Spread(line.tokens_per_second, max(0.0, half) / student_t975(freedom), freedom)


def _pair(run: HistoryLine, base: HistoryLine, measure: Measure) -> _LevelChange | str:
    """Compare two single runs by their own intervals.

    Of a share, the drift of both ceilings from before to after the run is added to the interval.
    """
    figures = [
        Figure("tokens_per_second", "tokens/s", line.tokens_per_second, "more", _spread(line))
        for line in (base, run)
    ]
    ratio = ratio_of(figures[0], figures[1])
    if ratio.interval is None:
        return "a run without an interval: --repeats 5, or a baseline of three runs or more"
    half = math.log(ratio.interval[1] / ratio.ratio) if ratio.ratio > 0 else math.inf
    log = math.log(value_of(run, measure) / value_of(base, measure))
    if measure == "share of ceiling":
        half = math.hypot(half, _drift(run) + _drift(base))
    return _LevelChange(measure, log, half, (base,))


def _conclusion(found: _LevelChange, outcome: Outcome, by: float) -> str:
    """Return the decision as a sentence."""
    change = percent(_relative(found.log))
    ends = " to ".join(percent(_relative(found.log + end)) for end in (-found.half, found.half))
    sentence = f"{outcome}: {found.measure} {change} (95 % interval {ends})"
    beyond = found.outcome(0.0)
    if outcome == "no change shown" and beyond != outcome:
        return f"{sentence}; smaller than the step that counts, {by:.3g}"
    return sentence


def _relative(log: float) -> float:
    """Return a logarithm as a relative change; beyond e^30 as e^30: lines may hold any numbers."""
    return math.expm1(min(log, _MOST_LOG))


def percent(change: float) -> str:
    """Return a relative change with its sign. Example: ``-5.1 %``."""
    return f"{100 * change:+,.1f} %"


def _notes(
    run: HistoryLine, found: _LevelChange, tokens: float | None, ceiling: float | None
) -> list[str]:
    """Return remarks: why the share decided, and what else differs."""
    runs, notes = found.runs, []
    is_new = all(line.machine != run.machine for line in runs)
    if is_new:
        notes.append(f"no run of the baseline is of this machine ({run.device}, {run.cores} cores)")
        if len({line.machine for line in runs}) < FEWEST:
            notes.append("shares of two machines differ by 20 % without any change of the code")
    if found.measure == "share of ceiling" and tokens is not None and ceiling is not None:
        notes.append(
            f"tokens/s {percent(tokens)}, ceiling {percent(ceiling)}: the share of the ceiling "
            "decides"
        )
        if not is_new and ceiling < 0:
            notes.append(
                "a plugin can lower the ceiling of its own device, and rule K1 cannot see that: "
                "--measure tokens leaves the ceiling out"
            )
    if len(runs) < FEWEST:
        notes.append("fewer than 3 runs to compare with: differences from run to run are unknown")
    for name, mine, theirs in (
        ("effective precision", run.effective_precision, {x.effective_precision for x in runs}),
        ("torch", run.torch, {x.torch for x in runs}),
        ("llmb", run.llmb_version, {x.llmb_version for x in runs}),
        ("rules", run.rules_version, {x.rules_version for x in runs}),
        ("plugin", run.plugin_version, {x.plugin_version for x in runs}),
    ):
        if theirs != {mine}:
            before = ", ".join(sorted(str(each) for each in theirs))
            notes.append(f"{name}: {before} in the baseline, {mine} in the run")
    if run.verdict not in (Verdict.CONSISTENT, Verdict.REPRODUCED):
        notes.append(f"the run is {run.verdict.value}: llmb audit says why")
    if run.load is not None and run.load > _BUSY and not _is_busy(runs):
        notes.append(f"the host was busy before the run: load {run.load:.1f} a core")
    return notes


#: Load of a core before a run with which the host counts as busy (``llmb.audit.quiet``).
_BUSY = 0.5


def _is_busy(lines: Sequence[HistoryLine]) -> bool:
    loads = [line.load for line in lines if line.load is not None]
    return bool(loads) and plain.median(loads) > _BUSY
