"""Foresees the seconds left of a run: for the eye only, and corrected while the run goes on.

A run is a row of parts. A part takes fixed seconds (starts of processes, files) and steps or work
that grows with a step, such as the audit's passes. Two measurements correct the guess of the
beginning: the pace of the finished parts, and the seconds of a step.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache

from llmb import clock, workloads
from llmb.config import AuditMode, Mode, RunConfig, RunRequest, is_cpu
from llmb.endings import RunPhase, RunProgress
from llmb.measure import duration
from llmb.plugin.builtin.host import usable_cores
from llmb.supervision.memory import why_no_ledger
from llmb.supervision.sizing import Estimate
from llmb.wire.messages import Tick
from llmb.workloads import Workload
from llmb.workloads.arithmetic import flops_of, parameter_count

#: Fixed seconds of each part, in seconds that this process took to start. Measured in debug runs on
#: two busy cores, where the start took 4.0 to 4.5 s: asking took 17 to 21 s, for example, because
#: torch is imported once.
_STARTS = {
    RunPhase.ASKING: 4.5,
    RunPhase.CEILINGS: 0.4,
    RunPhase.WARM_UP: 0.7,
    RunPhase.WINDOW: 0.0,
    RunPhase.EVIDENCE: 0.8,
    RunPhase.HONEST_RUN: 1.0,
    RunPhase.REFERENCE: 0.9,
    RunPhase.JUDGING: 0.4,
}
#: A process that has just started is at most so old, in seconds. An older process has waited for
#: other work, and counts as ``_USUAL_START_S`` seconds. Example: the later points of a sweep.
_YOUNG_S, _USUAL_START_S = 20.0, 1.5
#: Shares of the audit's passes and hashed weights: worker, honest run, reference run.
_OWN = {RunPhase.EVIDENCE: 0.45, RunPhase.HONEST_RUN: 0.25, RunPhase.REFERENCE: 0.3}
#: Passes of the audit in steps, where no rate is known: in the declared and in the wider format.
_OWN_STEPS = {AuditMode.QUICK: 22.0, AuditMode.FULL: 26.0, AuditMode.COMPLETE: 26.0}
_WIDE_STEPS = 6.0
#: Seconds of both ceilings, and the trials of a search for the batch size.
_CEILING_S, _TRIALS = {"official": 13.0, "debug": 1.0}, 6
#: FLOP/s of a step where nothing is measured yet: of one core, and of an accelerator.
_OF_A_CORE, _OF_A_DEVICE = 3e10, 1e14
#: Seconds of a step on a processor that no product explains.
_LEAST_STEP_S = 0.05
#: A part that takes longer than foreseen is foreseen to take half of the passed time more.
_OVERDUE = 0.5
#: The stage of a search for the batch size.
SEARCH = "search"
#: Weight of the first guess among the paces of finished parts, and the most weight of a part.
_GUESS, _MOST_WEIGHT = 0.3, 1.0


@dataclass(frozen=True)
class ForecastPart:
    """A part of a run, and the foreseen seconds."""

    #: Example: ``RunPhase.WINDOW``.
    stage: Hashable
    #: Seconds that do not grow with a step.
    fixed_s: float
    #: Work in units of a step.
    steps: float = 0.0
    #: Steps that the audit replays, all of them or a drawn share.
    replayed: float = 0.0
    complete: bool = False

    def seconds(self, pace: float, step_s: float) -> float:
        """Return the seconds at ``pace``, 2 for twice the fixed seconds, and ``step_s`` a step."""
        return pace * self.fixed_s + self.stepping_s(step_s)

    def stepping_s(self, step_s: float) -> float:
        """Return the seconds that grow with a step."""
        replay_s = duration.replay_s(self.replayed, step_s, complete=self.complete)
        return self.steps * step_s + replay_s


@dataclass
class Forecast:
    """The parts of a run, the present part, and the corrections measured until now."""

    parts: Sequence[ForecastPart]
    step_s: float = 0.0
    #: Source of the present part; None if ``enter`` is called instead.
    progress: RunProgress | None = None
    #: Seconds that this process took to start: the measure of fixed seconds.
    start_s: float = _USUAL_START_S
    _at: int = 0
    _began_ns: int = field(default_factory=lambda: clock.now_ns())
    _since_ns: int = field(default_factory=lambda: clock.now_ns())
    _is_held: bool = False
    #: Weights, and weighted paces, of the finished parts.
    _weight: float = _GUESS
    _paced: float = _GUESS
    #: Stage -> seconds of its last part, for later repeats and the second ceiling.
    _took: dict[Hashable, float] = field(default_factory=dict)
    #: Steps of the present stream, steps done, and the first step that counts for ``step_s``.
    _steps: int = 0
    _done: int = 0
    _first: Tick | None = None

    def plan(self, parts: Sequence[ForecastPart], step_s: float) -> None:
        """Replace all parts by ``parts``; the present part is the first."""
        self.parts, self.step_s, self._at = parts, step_s, 0

    def enter(self, stage: Hashable) -> None:
        """Note that the next part of ``stage`` has begun; unknown stages change nothing."""
        here = self.parts[self._at] if self.parts else None
        coming = range(self._at + 1, len(self.parts))
        found = next((i for i in coming if self.parts[i].stage == stage), None)
        if here is None or here.stage == stage or found is None:
            return
        self._learn(here)
        self._at, self._since_ns = found, clock.now_ns()

    def stream(self, steps: int) -> None:
        """Note that a stream of at most ``steps`` steps begins."""
        self._steps, self._done, self._first = steps, 0, None

    def tick(self, tick: Tick) -> None:
        """Note a finished step; from the third step on, the mean time of steps is known."""
        self._done = tick.index + 1
        if tick.index == 0:
            return
        if self._first is None:  # the first step of a stream compiles, or fills caches
            self._first = tick
        else:
            steps = tick.index - self._first.index
            self.step_s = (tick.ns - self._first.ns) / 1e9 / max(1, steps)

    @contextmanager
    def searching(self) -> Iterator[None]:
        """Hold the search for the batch size as the present part: trials have phases of a run."""
        found = [i for i, part in enumerate(self.parts) if part.stage == SEARCH]
        if found:
            self._at, self._since_ns, self._is_held = found[0], clock.now_ns(), True
        try:
            yield
        finally:
            self._is_held = False

    def whole_s(self) -> float:
        """Return the seconds of the whole run: the seconds passed and left."""
        return (clock.now_ns() - self._began_ns) / 1e9 + self.left_s()

    def left_s(self) -> float:
        """Return the foreseen seconds until the end."""
        if self.progress is not None and not self._is_held:
            self.enter(self.progress.phase)
        if not self.parts:
            return 0.0
        pace, coming = self._pace(), self.parts[self._at + 1 :]
        return self._left_here_s(pace) + sum(self._expected_s(part, pace) for part in coming)

    def _expected_s(self, part: ForecastPart, pace: float) -> float:
        took = self._took.get(part.stage)
        return part.seconds(pace, self.step_s) if took is None else took

    def _left_here_s(self, pace: float) -> float:
        here, passed_s = self.parts[self._at], self._passed_s()
        if here.stage == RunPhase.WINDOW and self._steps:
            return max(self._steps - self._done, 0) * self.step_s
        return max(self._expected_s(here, pace) - passed_s, _OVERDUE * passed_s)

    def _passed_s(self) -> float:
        return (clock.now_ns() - self._since_ns) / 1e9

    def _pace(self) -> float:
        """Return the mean pace of the finished parts, and of a present part that is overdue."""
        here = self.parts[self._at]
        weight, paced = self._weight, self._paced
        of_here = self._pace_of(here)
        if of_here > 1:
            weight += min(here.fixed_s, _MOST_WEIGHT)
            paced += min(here.fixed_s, _MOST_WEIGHT) * of_here
        return paced / weight

    def _pace_of(self, part: ForecastPart) -> float:
        if not part.fixed_s:
            return 0.0
        return max(0.0, self._passed_s() - part.stepping_s(self.step_s)) / part.fixed_s

    def _learn(self, part: ForecastPart) -> None:
        weight = min(part.fixed_s, _MOST_WEIGHT)
        self._weight += weight
        self._paced += weight * self._pace_of(part)
        self._took[part.stage] = self._passed_s()


def of_request(request: RunRequest, workload: Workload, progress: RunProgress) -> Forecast:
    """Return the forecast before any plugin is asked, from sizes and this process's start."""
    mode = workloads.mode_of(workload, request.mode)
    timed = request.timed_steps or mode.official_steps
    is_debug = bool(request.shape_overrides) or timed < mode.official_steps
    audit = request.audit or (AuditMode.QUICK if is_debug else AuditMode.FULL)
    size = request.batch_size if isinstance(request.batch_size, int) else request.accumulate
    device = "cpu" if request.device is None else request.device
    work = _Amounts(
        mode=mode,
        steps=(request.warmup_steps or 1, timed),
        repeats=request.repeats,
        audit=audit,
        searches=request.batch_size == "auto",
        is_debug=is_debug,
    )
    step_s = _step_s(workload, mode, size, request.new_tokens, device)
    parts = _parts(work, start_s())
    total = sum(part.seconds(1.0, step_s) for part in parts)
    if request.within_s is not None and total > request.within_s:
        fixed = sum(part.fixed_s for part in parts)
        step_s *= max(0.0, request.within_s - fixed) / (total - fixed)
    return Forecast(parts, step_s, progress, start_s())


def settle(
    forecast: Forecast, config: RunConfig, estimate: Estimate | None, *, searches: bool
) -> None:
    """Correct ``forecast`` by the settled ``config``, and by measured rates if known."""
    workload = workloads.of(config)
    is_debug = bool(config.shape_overrides) or config.timed_steps < config.mode.official_steps
    work = _Amounts(
        mode=config.mode,
        steps=(config.warmup_steps, config.timed_steps),
        repeats=config.repeats,
        audit=config.audit,
        searches=searches,
        is_debug=is_debug,
        replays=config.mode is not Mode.TRAIN or why_no_ledger(config, workload) is None,
    )
    size = config.batch_size
    step_s = _step_s(workload, config.mode, size, config.new_tokens, config.device)
    if estimate is not None:
        step_s = duration.step_s(workload.shape, config, estimate.rates)
        passes = duration.audit_s(workload.shape, config, estimate.rates)
        own = (passes.own + passes.weights) / step_s
        work = replace(work, own_steps=own, wide_steps=passes.wide / step_s)
    forecast.plan(_parts(work, forecast.start_s), step_s)


def of_audit(progress: RunProgress, step_s: float, steps: int, audit: AuditMode) -> Forecast:
    """Return the forecast of an audit without a run: ceilings, two runs beside it, judgement."""
    work = _Amounts(Mode.TRAIN, (0, steps), 1, audit)
    stages = (
        *(RunPhase.ASKING, RunPhase.CEILINGS, RunPhase.HONEST_RUN, RunPhase.REFERENCE),
        RunPhase.JUDGING,
    )
    parts = [part for part in _parts(work, start_s()) if part.stage in stages]
    return Forecast(parts, step_s, progress, start_s())


@dataclass(frozen=True)
class _Amounts:
    """The amounts of a run that its parts follow from."""

    mode: Mode
    #: Untimed and timed steps of a repeat.
    steps: tuple[int, int]
    repeats: int
    audit: AuditMode
    searches: bool = False
    is_debug: bool = False
    #: The audit replays the steps (rule L1).
    replays: bool = True
    #: Passes of the audit in units of a step; None: not estimated.
    own_steps: float | None = None
    wide_steps: float | None = None


def _parts(work: _Amounts, unit_s: float) -> tuple[ForecastPart, ...]:
    """Return the parts of a run in order; ``unit_s``: the seconds of a process's start."""

    def part(phase: RunPhase, steps: float = 0.0, replayed: float = 0.0) -> ForecastPart:
        complete = work.audit is AuditMode.COMPLETE
        return ForecastPart(phase, _STARTS[phase] * unit_s, steps, replayed, complete)

    ceiling = part(RunPhase.CEILINGS)
    measuring_s = _CEILING_S["debug" if work.is_debug else "official"] / 2
    ceiling = replace(ceiling, fixed_s=ceiling.fixed_s + measuring_s)
    warm, timed = work.steps
    repeat = [part(RunPhase.WARM_UP, warm), part(RunPhase.WINDOW, timed + 4)]
    if work.audit is AuditMode.OFF:
        repeat.append(ForecastPart(RunPhase.EVIDENCE, 0.2 * unit_s))
    else:
        own = _OWN_STEPS[work.audit] if work.own_steps is None else work.own_steps
        wide = _WIDE_STEPS if work.wide_steps is None else work.wide_steps
        replayed = (warm + timed + 4) if work.replays else 0
        more = {RunPhase.EVIDENCE: 0.0, RunPhase.HONEST_RUN: 0.0, RunPhase.REFERENCE: wide}
        for phase, share in _OWN.items():
            again = replayed if phase is RunPhase.HONEST_RUN else 0.0
            repeat.append(part(phase, share * own + more[phase], again))
    search = [ForecastPart(SEARCH, _TRIALS * unit_s, 5.0 * _TRIALS)] if work.searches else []
    return (
        part(RunPhase.ASKING),
        *search,
        ceiling,
        *repeat * work.repeats,
        ceiling,
        part(RunPhase.JUDGING),
    )


@cache
def start_s() -> float:
    """Return the seconds from the start of this process to the first call of the function."""
    age_s = clock.age_s()
    return age_s if 0 < age_s < _YOUNG_S else _USUAL_START_S


def _step_s(
    workload: Workload, mode: Mode, batch_size: int, new_tokens: int | None, device: str
) -> float:
    """Return the seconds of a step by a usual speed, where nothing was measured."""
    tokens = workload.tokens_per_step(batch_size, new_tokens)
    flops = tokens * flops_of(mode, workload.shape)
    if not is_cpu(device):
        return flops / _OF_A_DEVICE + parameter_count(workload.shape) * 1e-11
    return _LEAST_STEP_S + flops / (_OF_A_CORE * usable_cores())
