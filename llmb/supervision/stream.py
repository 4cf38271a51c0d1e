"""The supervisor's side of the stream of steps: orders sent to the worker, and fences stamped.

Fences come every ``FENCE_EVERY`` steps from the first fence to the end. START is the first or the
second fence, by a draw hidden from the worker. STOP is ``timed_steps`` after START. A fence comes
``timed_steps`` after the first fence and ``timed_steps`` after the second fence, and some more
steps follow. No message to the worker tells START or STOP from another fence.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from llmb import clock, endings, workloads
from llmb.config import Mode, RunConfig, is_cpu
from llmb.endings import RunPhase, RunProgress
from llmb.errors import LlmbError, RunFailedError
from llmb.measure.summary import EnergyMeter
from llmb.records import audited
from llmb.records.draws import FENCE_EVERY, MOST_TAIL_STEPS, Draws, fence_every
from llmb.records.lacks import Lacks
from llmb.records.run_record import RepeatTiming, StepClock, Stop, Tail
from llmb.records.seeds import token_seed
from llmb.records.time_stamp import AtStop
from llmb.reference.lengths import draw_lengths
from llmb.supervision.silence import Silence, Vigil
from llmb.supervision.time_stamps import RepeatStamps
from llmb.wire.child import Child
from llmb.wire.messages import (
    AuditRequest,
    EvidenceFile,
    Fence,
    KeepWeights,
    Message,
    Paused,
    Phase,
    Proceed,
    Readings,
    Ready,
    Sampled,
    ShownStep,
    StepDraw,
    StepOrder,
    Stopped,
    StreamEnded,
    Tick,
    Worked,
)

_IDLE_S = 0.25  # seconds between two redraws of the display while a step is running
_CHANGED = "the samples of step {} changed after the worker had committed to them"


@dataclass(frozen=True)
class Window:
    """The position of the timed window in the stream, in steps done.

    Example: ``start`` 4 means that START is stamped after four steps.
    """

    first_fence: int
    start: int
    stop: int
    end: int
    #: Audited steps inside the stream; step ``end`` is audited in addition. Empty for a trial.
    audits: tuple[int, ...] = ()
    #: Steps of the window with weights handed over by the worker (rule G1).
    judged: tuple[int, ...] = ()
    #: Steps between two fences; 1 in modes with a fence after every call.
    every: int = FENCE_EVERY
    #: The gradients of every step are compared afterwards (rule L1).
    every_step: bool = False

    def is_fence(self, steps: int) -> bool:
        """Tell whether the stream has a fence after ``steps`` steps."""
        if self.every == 1:  # every call or sample has a fence
            return steps >= 1
        regular = steps >= self.first_fence and (steps - self.first_fence) % self.every == 0
        return regular or steps in self.stops

    @property
    def steps(self) -> int:
        """Number of steps with gradients; the last step has no update."""
        return self.end + 1

    @property
    def timed(self) -> int:
        """Number of timed steps."""
        return self.stop - self.start

    @property
    def starts(self) -> tuple[int, int]:
        """Numbers of steps after which START may lie, as far as the worker can tell."""
        return self.first_fence, self.second_fence

    @property
    def stops(self) -> tuple[int, int]:
        """Numbers of steps after which STOP may lie."""
        return self.first_fence + self.timed, self.second_fence + self.timed

    @property
    def second_fence(self) -> int:
        """Number of steps done at the second fence, where START may also lie."""
        return self.first_fence + self.every


def plan_window(config: RunConfig, drawn: Draws) -> Window:
    """Return the window of one repeat, with the audited steps.

    The draws follow from the nonce of the repeat, not from the seed of the run: the user who
    started the run knows the seed.
    """
    draw = random.Random(drawn.window)
    every = fence_every(config.mode.value)
    start = config.warmup_steps + every * draw.randrange(2)
    stop = start + config.timed_steps
    end = stop + draw.randint(1, MOST_TAIL_STEPS)
    first = config.warmup_steps
    if config.mode is Mode.TRAIN:
        # Gradients are compared in the judged steps, or in every step. The optimizer's bits are
        # compared in one more step: a stop would show the plugin that the step is audited.
        judged = drawn.judged(range(start, stop), end + 1)
        others = [step for step in range(start, stop) if step not in judged]
        # One more lies in the warm-up: a compiling device then knows an audited step and the next
        # step before the window.
        audits = {draw.choice(others), max(0, start - 2)} - {*judged}
        every_step = drawn.compares_all(end + 1)
        return Window(first, start, stop, end, tuple(sorted(audits)), judged, every, every_step)
    # Two audited calls, whose pace rule T2 compares with that of others. A cheat in every second
    # call shows in the last call or in the last audited call: the distance between both is odd.
    inside = draw.sample(range(start, stop), min(2, stop - start))
    end += (end - max(inside)) % 2 == 0
    calls = tuple(sorted({max(0, start - 2), *inside}))
    return Window(first, start, stop, end, calls, every=every)


def plan_trial(config: RunConfig) -> Window:
    """Return the shortest stream with a timing, for the batch-size search only."""
    start = config.warmup_steps
    end = start + config.timed_steps
    return Window(start, start, end, end, every=fence_every(config.mode.value))


@dataclass(frozen=True)
class AuditedRequest:
    """An audited step as requested by the supervisor, for comparison with the worker's evidence."""

    seed: int
    token_seed: int
    last: bool


@dataclass(frozen=True)
class Streamed:
    """The result of one worker's stream: timing, energy meter and evidence."""

    timing: RepeatTiming
    meter: EnergyMeter | None
    evidence: dict[str, str]
    #: Files of full weights in the scratch folder, for the audit: file name -> sha256.
    scratch: dict[str, str]
    #: The error that ended the worker after a complete window; None without one.
    failure: LlmbError | KeyboardInterrupt | None = None
    #: Audit requests to the worker: step number -> request.
    asked: Mapping[int, AuditedRequest] = field(default_factory=dict)
    #: Token seeds of all ordered steps, from step 0.
    token_seeds: tuple[int, ...] = ()
    #: Digests of the gradients shown in judged steps, if rule L1 does not compare every step.
    shown: Mapping[int, str] = field(default_factory=dict)


class Patience:
    """A time limit on the worker's silence: a hanging device reports nothing."""

    _BEFORE_STEPS_S = 3600.0
    _LEAST_S = 600.0
    _STEPS = 20

    def __init__(self, lacks: Lacks | None = None) -> None:
        """Start waiting; ``lacks`` lengthens the limits for a device with a slow compiler."""
        lacks = lacks or Lacks()
        self._before_steps_s = lacks.patience_s(self._BEFORE_STEPS_S)
        self._least_s = lacks.patience_s(self._LEAST_S)
        self._since_ns = clock.now_ns()
        self._longest_s: float | None = None

    def heard(self, message: object | None) -> None:
        """Note that ``message`` came; None means that no message came.

        Raises:
            RunFailedError: the silence is too long. Before the first step, the limit is an hour.
                Later, the limit is ten minutes or 20 times the longest step, if longer. Example: 20
                minutes for steps of 60 s.
        """
        now = clock.now_ns()
        silent_s = (now - self._since_ns) / 1e9
        if message is not None:
            self._since_ns = now
            if isinstance(message, Tick):
                self._longest_s = max(self._longest_s or 0.0, silent_s)
            return
        limit_s = self._before_steps_s
        if self._longest_s is not None:
            limit_s = max(self._least_s, self._STEPS * self._longest_s)
        if silent_s > limit_s:
            raise RunFailedError(
                f"the worker has been silent for {silent_s:.0f} s: the device or its plugin hangs"
            )


@dataclass
class _StreamLog:
    fences: list[Fence] = field(default_factory=list)
    #: The worker's readings of the device after each fence, for example peak memory.
    readings: list[Readings] = field(default_factory=list)
    stamps: list[int] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)
    evidence: dict[str, str] = field(default_factory=dict)
    scratch: dict[str, str] = field(default_factory=dict)
    asked: dict[int, AuditedRequest] = field(default_factory=dict)
    #: Token seed of each ordered step; ``tokens`` counts the tokens of a step if lengths vary.
    token_seeds: list[int] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    #: Times in ns: the worker's pause in the last step, the supervisor's message that the step is
    #: the last, and the worker's answer.
    paused_ns: int | None = None
    told_ns: int | None = None
    ended_ns: int | None = None
    #: The worker's commitments to each step's gradients (or logits), received in the next pause,
    #: and by step those that the worker has made earlier: before the answer, or once judged.
    commitments: list[str] = field(default_factory=list)
    committed: dict[int, str] = field(default_factory=dict)
    #: The stops of the clock, the judged steps, and by step the digests of their gradients.
    stops: list[Stop] = field(default_factory=list)
    judged: set[int] = field(default_factory=set)
    shown: dict[int, str] = field(default_factory=dict)

    def on_clock(self, ns: int) -> int:
        """Return ``ns`` on the clock of the run, which stood still in the stops."""
        return ns - sum(stop.ns for stop in self.stops)


@dataclass(frozen=True)
class AuditAnswers:
    """The answers to a worker in the pause of each step: proceed, or audit the step."""

    window: Window
    #: The source of the payload of every step, and of the seeds of audit requests.
    drawn: Draws = field(repr=False)

    def to(self, index: int) -> Proceed | AuditRequest | KeepWeights:
        """Return the answer in the pause of step ``index``."""
        last = index >= self.window.end
        if index in self.window.judged:
            return KeepWeights(seed=None if self.window.every_step else self.drawn.audit(index))
        if not last and index not in self.window.audits:
            return Proceed()
        return AuditRequest(seed=self.drawn.audit(index), last=last)

    def draw(self, index: int) -> StepDraw | None:
        """Return the order that precedes the answer; None if no step is replayed (rule L1)."""
        if not self.drawn.ledger:
            return None
        return StepDraw(places=self.drawn.places(index), rate=self.drawn.rate(index))


def drive(
    child: Child,
    config: RunConfig,
    window: Window,
    repeat: int,
    drawn: Draws,
    step_clock: StepClock,
    display: Callable[[Phase | Tick | Fence | Silence | None], None],
    lacks: Lacks | None = None,
    stamps: RepeatStamps | None = None,
    progress: RunProgress | None = None,
) -> Streamed:
    """Stream steps to ``child`` until the worker is done, and stamp each fence on arrival.

    Token seeds, and the payload of each step, follow from ``drawn``.

    ``display`` receives None when a moment has passed without a report, and a ``Silence`` once
    nothing was shown for a minute. With ``lacks``, a device with a slow compiler gets more time.
    Time ``stamps`` are requested at fences, and the first stamp is mixed into later draws; no step
    waits for a stamp. ``progress`` receives the phase of the stream. An early warning (SIGUSR1)
    ends the stream after the step in computation.

    Raises:
        LlmbError: the worker failed, died, or did not follow the stream.
        Interrupted: a signal came before the window was complete.
    """
    log = _StreamLog()
    answers = AuditAnswers(window, drawn)
    listener = _Listener(child, config, window, repeat, log, answers, stamps)
    progress = progress or RunProgress()
    lacks = lacks or Lacks()
    patience = Patience(lacks)
    vigil = Vigil(child, config.device, lacks.minutes_per_program)
    try:
        with endings.held(endings.WARNING):
            while True:
                progress.enter(listener.phase, listener.done)
                try:
                    message = child.receive(_IDLE_S)
                    patience.heard(message)
                except LlmbError as error:
                    if not listener.complete:
                        raise
                    # The window is complete and all stamps are here: the timing is worth keeping.
                    return _streamed(log, config, window, step_clock, drawn.nonce, error)
                if isinstance(message, Worked):
                    return _streamed(log, config, window, step_clock, drawn.nonce)
                listener.take(message)
                if message is None:
                    display(vigil.moment(listener.computing))
                elif isinstance(message, (Phase, Tick, Fence)):
                    vigil.restart()
                    display(message)
                if isinstance(message, Tick) or listener.computing is None:
                    endings.raise_noted()
    except KeyboardInterrupt as error:
        if not listener.complete:
            raise
        return _streamed(log, config, window, step_clock, drawn.nonce, error)


@dataclass
class _Listener:
    """Takes the worker's messages during the stream, and checks each message against the plan."""

    child: Child
    config: RunConfig
    window: Window
    repeat: int
    log: _StreamLog
    answers: AuditAnswers
    stamps: RepeatStamps | None = None
    complete: bool = False
    #: When the clock stopped: the worker writes the weights of a judged step. None: the clock runs.
    _stopped_ns: int | None = None
    _sent: int = 0
    _answered: int = 0
    #: The worker reads the elements of the paused step, and has no answer yet.
    _samples: bool = False
    #: sha256 over the blind sample of the paused step.
    _glanced: str = ""

    @cached_property
    def _longest(self) -> int:
        return workloads.of(self.config).shape.sequence_length

    @property
    def computing(self) -> int | None:
        """The number of the step in computation; None between steps."""
        index = len(self.log.steps)
        return index if index < min(self._sent, self.window.end) else None

    @property
    def phase(self) -> RunPhase:
        """The phase of the run at this point of the stream."""
        if self.complete:
            return RunPhase.EVIDENCE
        began = len(self.log.steps) >= self.window.start
        return RunPhase.WINDOW if began else RunPhase.WARM_UP

    @property
    def done(self) -> str:
        """The number of timed steps done, in words; empty outside of the window.

        Example: "after 3 of 10 timed steps".
        """
        timed = len(self.log.steps) - self.window.start
        if timed < 0 or self.complete:
            return ""
        return f"after {min(timed, self.window.timed)} of {self.window.timed} timed steps"

    def take(self, message: Message | None) -> None:
        if isinstance(message, Ready):
            if self._sent:
                raise RunFailedError("the worker said twice that it is ready")
            self._order_next()
        elif isinstance(message, Fence):
            self._fence(message)
        elif isinstance(message, Readings):
            self._readings(message)
        elif isinstance(message, Tick):
            self._tick(message)
        elif isinstance(message, Paused):
            self._pause(message)
        elif isinstance(message, Sampled):
            self._sampled(message)
        elif isinstance(message, StreamEnded):
            if self.log.told_ns is None or self.log.ended_ns is not None:
                raise RunFailedError("the worker ended its stream before it was told to")
            self.log.ended_ns = self.log.on_clock(self.child.received_ns)
            self._commitment(self._answered - 1, message.commitment)
        elif isinstance(message, ShownStep):
            self._shown(message)
        elif isinstance(message, Stopped):
            self._stop(message)
        elif isinstance(message, EvidenceFile):
            if self._stopped_ns is not None:
                self._go_on(message)
            files = self.log.scratch if message.scratch else self.log.evidence
            files[message.name] = message.sha256
        elif not (message is None or isinstance(message, Phase)):
            raise RunFailedError(f"the worker said {message.kind!r} in the middle of the stream")

    def _fence(self, fence: Fence) -> None:
        log = self.log
        due = fence.steps == len(log.steps) and self.window.is_fence(fence.steps)
        if not due or (log.fences and log.fences[-1].steps >= fence.steps):
            raise RunFailedError(f"the worker reported a fence after {fence.steps} steps")
        log.stamps.append(log.on_clock(self.child.received_ns))
        log.fences.append(fence)
        self._order_next()
        if self.stamps is not None:
            self._ask_for_stamp(fence.steps, self.stamps)

    def _ask_for_stamp(self, steps: int, stamps: RepeatStamps) -> None:
        window, log = self.window, self.log
        if steps == window.start:
            stamps.at_start(self.answers.drawn.nonce)
        elif steps == window.stop:
            known = AtStop(
                nonce=self.answers.drawn.nonce,
                warmup_steps=window.start,
                timed_steps=window.timed,
                fence_steps=tuple(one.steps for one in log.fences),
                fence_ns=tuple(log.stamps),
                step_ns=tuple(log.steps[:steps]),
                fence_bits=tuple(one.bits for one in log.fences),
                commitments=tuple(log.commitments[: steps - 1]),
            )
            stamps.at_stop(known)
        elif steps in (*window.starts, *window.stops):
            stamps.at_another()

    def _readings(self, readings: Readings) -> None:
        log = self.log
        if len(log.readings) + 1 != len(log.fences) or log.fences[-1].steps != readings.steps:
            raise RunFailedError(f"the worker gave readings of {readings.steps} steps out of turn")
        log.readings.append(readings)
        if readings.steps == self.window.stop:
            self.complete = True

    def _tick(self, tick: Tick) -> None:
        owed = len(self.log.readings) != len(self.log.fences)
        owed = owed or self._samples
        if tick.index != len(self.log.steps) or tick.index >= self._sent or owed:
            raise RunFailedError(f"the worker reported step {tick.index} out of turn")
        self.log.steps.append(tick.ns)

    def _pause(self, paused: Paused) -> None:
        due = paused.index == len(self.log.steps) == self._answered
        if not due or paused.index >= self._sent:
            raise RunFailedError(f"the worker paused in step {paused.index} out of turn")
        self._answered += 1
        if paused.index > 0 or paused.commitment:
            self._commitment(paused.index - 1, paused.commitment)
        shows = bool(self.window.judged) and not self.window.every_step
        self._check_digest(paused.index, paused.glanced, due=shows)
        self._glanced = paused.glanced
        draw = self.answers.draw(paused.index)
        if draw is None:
            self._answer(paused.index)
        else:
            self._samples = True
            self.child.send(draw)

    def _sampled(self, sampled: Sampled) -> None:
        """Answer the pause: the worker has read the elements of the step."""
        index = self._answered - 1
        if sampled.index != index or not self._samples:
            raise RunFailedError(f"the worker sampled step {sampled.index} out of turn")
        self._samples = False
        self._check_digest(index, sampled.commitment, due=True)
        self._commit(index, sampled.commitment)
        self._answer(index)

    def _check_digest(self, step: int, digest: str, *, due: bool) -> None:
        """Check that a worker on the CPU, which waits for no device, has sent a ``digest``."""
        if due and not digest and is_cpu(self.config.device):
            raise RunFailedError(f"the worker sent no digest of the samples of step {step}")

    def _answer(self, index: int) -> None:
        answer = self.answers.to(index)
        last = isinstance(answer, AuditRequest) and answer.last
        if not isinstance(answer, Proceed) and answer.seed is not None:
            tokens = self._token_seed(index)
            self.log.asked[index] = AuditedRequest(answer.seed, tokens, last)
        if last:
            self.log.paused_ns = self.log.on_clock(self.child.received_ns)
            self.log.told_ns = self.log.on_clock(clock.now_ns())
            self.child.send(answer)
            return
        # While the clock stands still, the worker does not know the tokens of the next step.
        if not isinstance(answer, KeepWeights) and not self.window.is_fence(index + 1):
            self._order_next()
        self.child.send(answer)

    def _shown(self, shown: ShownStep) -> None:
        index = self._answered - 1
        due = index in self.window.judged and index not in self.log.judged and not self._samples
        if not due or shown.index != index:
            raise RunFailedError(f"the worker showed step {shown.index} out of turn")
        if bool(shown.digest) == self.window.every_step:
            raise RunFailedError(f"the worker showed other gradients of step {index} than due")
        if shown.glanced != self._glanced and not self.window.every_step:
            raise RunFailedError(_CHANGED.format(index))
        self.log.judged.add(index)
        self._commit(index, shown.commitment)
        if shown.digest:
            self.log.shown[index] = shown.digest

    def _stop(self, stopped: Stopped) -> None:
        index = self._answered - 1
        again = any(stop.step == index for stop in self.log.stops)
        if index not in self.log.judged or again or self._stopped_ns is not None:
            raise RunFailedError(f"the worker stopped in step {stopped.index} out of turn")
        if stopped.index != index:
            raise RunFailedError(f"the worker stopped in step {stopped.index}, not in {index}")
        self._stopped_ns = self.child.received_ns

    def _go_on(self, weights: EvidenceFile) -> None:
        index, began_ns = self._answered - 1, self._stopped_ns
        if weights.name != audited.judged_weights(index) or not weights.scratch:
            raise RunFailedError(f"the worker wrote {weights.name} where the weights were due")
        assert began_ns is not None
        if not self.window.is_fence(index + 1):
            self._order_next()
        stop_ns = clock.now_ns() - began_ns
        at_ns = self.log.on_clock(began_ns)
        self.log.stops.append(Stop(step=index, at_ns=at_ns, ns=stop_ns))
        self._stopped_ns = None
        self.child.send(Proceed(stopped_ns=stop_ns))

    def _commitment(self, step: int, commitment: str) -> None:
        due = self.answers.drawn.ledger and step >= 0
        if due != bool(commitment):
            what = f"nothing of step {step}" if due else "what nobody asked for"
            raise RunFailedError(f"after step {step} the worker committed to {what}")
        if due:
            self._commit(step, commitment)
            self.log.commitments.append(commitment)

    def _commit(self, step: int, commitment: str) -> None:
        """Hold the worker to the first commitment to ``step``; a busy device commits later."""
        if commitment and self.log.committed.setdefault(step, commitment) != commitment:
            raise RunFailedError(_CHANGED.format(step))

    def _order_next(self) -> None:
        """Order the next step, either with the answer in a pause or after a stamped fence.

        The worker learns a step's tokens only after the step's block between fences has begun.
        """
        if self.stamps is not None and self._sent < self.window.stop:
            stamp = self.stamps.mixed(self._sent)
            if stamp is not None:
                drawn = replace(self.answers.drawn, stamp=stamp)
                self.answers = replace(self.answers, drawn=drawn)
        seed = self._token_seed(self._sent)
        fence = self.window.is_fence(self._sent + 1)
        self.log.token_seeds.append(seed)
        if self.config.dynamic:
            lengths = draw_lengths(seed, self.config.global_batch_size, self._longest)
            self.log.tokens.append(sum(lengths))
        self.child.send(StepOrder(index=self._sent, seed=seed, fence=fence))
        self._sent += 1

    def _token_seed(self, step: int) -> int:
        nonce = self.answers.drawn.nonce_at(step)
        return token_seed(self.config.seed, self.repeat, step, nonce)


def _tail(log: _StreamLog, window: Window) -> Tail | None:
    if log.paused_ns is None or log.told_ns is None or log.ended_ns is None:
        return None
    return Tail(
        steps=len(log.steps) - window.stop,
        paused_ns=log.paused_ns,
        told_ns=log.told_ns,
        ended_ns=log.ended_ns,
    )


def _streamed(
    log: _StreamLog,
    config: RunConfig,
    window: Window,
    step_clock: StepClock,
    nonce: str,
    failure: LlmbError | KeyboardInterrupt | None = None,
) -> Streamed:
    by_step = {fence.steps: i for i, fence in enumerate(log.fences)}
    if window.start not in by_step or window.stop not in by_step:
        raise RunFailedError("the worker ended its stream before the timed window was complete")
    kept = by_step[window.stop] + 1  # fences after STOP are not part of the run
    fences, stamps = log.fences[:kept], log.stamps[:kept]
    start, stop = fences[by_step[window.start]], fences[-1]
    readings = log.readings[:kept]
    before, after = readings[by_step[window.start]], readings[-1]
    if config.mode is Mode.TRAIN and (start.loss is None or stop.loss is None):
        raise RunFailedError("the worker read no loss back at a fence")
    prefills = [fence.prefill_ns for fence in fences]
    telemetry = [each.telemetry for each in readings]
    timing = RepeatTiming(
        warmup_steps=window.start,
        timed_steps=window.stop - window.start,
        start_ns=stamps[by_step[window.start]],
        stop_ns=stamps[-1],
        fence_ns=tuple(stamps),
        fence_worker_ns=tuple(fence.worker_ns for fence in fences),
        fence_steps=tuple(fence.steps for fence in fences),
        step_ns=tuple(log.steps[: window.stop]),
        step_clock=step_clock,
        starved_steps=stop.starved_steps - start.starved_steps,
        loss_first=start.loss,
        loss_last=stop.loss,
        peak_memory_bytes=after.peak_memory_bytes,
        energy_start_j=before.energy_j,
        energy_stop_j=after.energy_j,
        cpu_s=stop.cpu_s - start.cpu_s,
        telemetry=tuple(telemetry) if any(telemetry) else (),
        audited_steps=stop.audited_steps,
        step_tokens=tuple(log.tokens[: window.stop]),
        prefill_ns=tuple(ns for ns in prefills if ns is not None),
        nonce=nonce,
        commitments=tuple(log.commitments),
        fence_bits=tuple(fence.bits for fence in fences),
        tail=_tail(log, window),
        stops=tuple(log.stops),
    )
    meter = None
    if after.energy_source is not None and after.energy_scope is not None:
        meter = EnergyMeter(after.energy_source, after.energy_scope)
    seeds = tuple(log.token_seeds)
    return Streamed(timing, meter, log.evidence, log.scratch, failure, log.asked, seeds, log.shown)
