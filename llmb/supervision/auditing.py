"""The processes after a worker: an honest run on the device, and a reference run on the host.

Either process may fail without ending the run: then the missing evidence is recorded as not
observed. On a CPU the two processes work in turn. On a device, with enough free host memory, both
processes work at the same time (docs/adr/0033): the honest run needs the device, the reference run
needs the host. Only a reference of full batches with too much work for the host is computed on the
device (``reference_on_device``).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, TypeVar

from pydantic import ValidationError

from llmb import clock, endings, workloads
from llmb.config import Frozen, Mode, RunConfig, idle_waiting, is_cpu
from llmb.endings import RunPhase, RunProgress
from llmb.errors import LlmbError, RunFailedError
from llmb.plugin.builtin import host
from llmb.records import audited, draws, evidence
from llmb.records.arrays import packed
from llmb.records.draws import Draws
from llmb.supervision.lacking import host_patience_s, reference_on_device
from llmb.supervision.negotiation import Negotiated, for_children
from llmb.supervision.silence import Silence, Vigil
from llmb.supervision.stream import AuditedRequest, Streamed
from llmb.wire.child import Child
from llmb.wire.messages import (
    CallsToReplay,
    CallToReplay,
    Done,
    EvidenceFile,
    HonestOrder,
    KeepWeights,
    KeptStep,
    Paused,
    Phase,
    Proceed,
    RecomputeOrder,
    ReferenceOrder,
    StreamToReplay,
    Tick,
    Unmade,
)
from llmb.workloads.arithmetic import parameter_count

E = TypeVar("E", bound=Frozen)
#: Seconds without a message after which an honest or reference run counts as hanging.
_LIMIT_S = 3600.0
#: Bytes of host memory per parameter that both processes need at the same time. Example: for
#: llama-1.4b the reference took 14.0 to 17.1 GB (9.8 to 12 bytes a parameter); the rest is for the
#: host memory of the honest run.
_HOST_BYTES = 16
#: Seconds between two redraws of the display while processes work.
_IDLE_S = 0.25
#: Variables of a plugin that the reference run has, too: torch's random numbers, and so the first
#: weights, have other bits without AVX2.
_OF_THE_HOST = ("ATEN_CPU_CAPABILITY",)
_HONEST_RUN, _REFERENCE_RUN = "llmb.processes.honest_run", "llmb.processes.reference_run"
_HONEST, _REFERENCE = "an honest run on the device", "the reference"


@dataclass(frozen=True)
class Folders:
    """The folder of a worker's evidence, and the scratch folder of full weights for the audit."""

    evidence: Path
    scratch: Path | None


@dataclass(frozen=True)
class Examined:
    """The evidence (file name -> sha256) and failures of honest run and reference run."""

    evidence: dict[str, str]
    failures: tuple[str, ...]
    #: The error that ended the audit early, such as a signal or a full disk; None without one.
    ended: LlmbError | KeyboardInterrupt | None = None
    #: Files of full weights kept until the audit is finished: file name -> sha256.
    weights: Mapping[str, str] = field(default_factory=dict)


@dataclass
class _AuditTask:
    """A process, the order sent to the process, and the evidence received until now."""

    child: Child
    what: str
    order: HonestOrder | ReferenceOrder | RecomputeOrder
    #: Names of the files that the process may write.
    names: frozenset[str]
    #: Ends the process.
    end: Callable[[], None]
    vigil: Vigil
    deadline_ns: int = 0
    evidence: dict[str, str] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    #: Replayed steps that the reference run recomputes afterwards: weights file name -> step.
    #: ``commitments`` and ``weights`` come from the honest run: step -> commitment, and step ->
    #: sha256 of the weights file.
    to_recompute: Mapping[str, int] = field(default_factory=dict)
    commitments: dict[int, str] = field(default_factory=dict)
    weights: dict[int, str] = field(default_factory=dict)
    #: The process has no more messages for this task.
    is_over: bool = False

    def may_pause(self, step: int) -> bool:
        """Tell whether a replay may pause in ``step`` now.

        Steps come in order. A replay with too little memory begins again at step 0. A new beginning
        is refused once the replay has heard of a recomputed step, because the replay would then
        know the checked steps.
        """
        replays = isinstance(self.order, HonestOrder) and self.order.stream is not None
        begins_anew = step == 0 and not self.commitments.keys() & {*self.to_recompute.values()}
        follows = step == max(self.commitments, default=-1) + 1
        return replays and (follows or begins_anew)

    def awaits(self, name: str) -> bool:
        """Tell whether ``name`` is the weights file of the step that paused last."""
        return self.to_recompute.get(name, -1) == max(self.commitments, default=None)

    def fail(self, error: LlmbError) -> None:
        """Note that the process failed; files announced by the process do not count."""
        self.evidence, self.is_over = {}, True
        self.failures = [f"{self.what} failed: {error}"]


class Examiner:
    """Examines one repeat with an honest run and a reference run."""

    def __init__(
        self,
        negotiated: Negotiated,
        config: RunConfig,
        folders: Folders,
        log: Callable[[], AbstractContextManager[IO[bytes]]],
        say: Callable[[str], None],
        show: Callable[[Silence | None], None],
        only: audited.OnePart | None = None,
        progress: RunProgress | None = None,
    ) -> None:
        """Read and write in ``folders``; ``show`` is called while a process sends no message.

        ``only``: the worker was asked for one part of the model, without a list of replacements.
        ``progress`` receives the phase, for example the honest run.
        """
        self._only, self._progress = only, progress or RunProgress()
        self._negotiated, self._config = negotiated, for_children(config)
        self._folders = folders
        self._log, self._say, self._show = log, say, show

    @property
    def _of_part(self) -> tuple[str, ...]:
        """Names of the scratch files for the model part in ``only``, from either process."""
        if self._only is None:
            return ()
        return (audited.PART_HONEST, audited.PART_REFERENCE)

    def examine(self, streamed: Streamed) -> Examined:
        """Return the evidence of the two processes about a worker that has ended.

        Raises:
            Interrupted: a signal came.
            NotEnoughSpaceError: the disk is full.
        """
        self._progress.enter(RunPhase.HONEST_RUN)
        if streamed.failure is not None:
            return Examined({}, (f"the worker died while being audited: {streamed.failure}",))
        try:
            honest, reference = self._orders(streamed)
        except RunFailedError as error:
            return Examined({}, (str(error),))
        with ExitStack() as reference_process, ExitStack() as honest_process:
            right = self._task(_REFERENCE_RUN, _REFERENCE, reference, reference_process)
            shown = self._task(_HONEST_RUN, _HONEST, honest, honest_process)
            shown.to_recompute = self._to_recompute(streamed)
            # The reference run introduces itself before the honest run loads the vendor's code. In
            # this order vendor code cannot pose as the reference run.
            for task in (right, shown):
                try:
                    task.child.begin()
                except LlmbError as error:
                    self._failed(task, error)
            self._do(shown, *((right,) if reference.shared else ()))
            if honest.reference_passes and audited.DEVICE_REFERENCE not in shown.evidence:
                right.order = reference.model_copy(
                    update={"passes": honest.passes, "shared": False}
                )
                right.is_over = bool(right.failures)
            self._do(right)
            again = self._again(streamed, shown, right)
            self._do(*again)
        tasks = (shown, right, *again)
        found = {name: digest for task in tasks for name, digest in task.evidence.items()}
        return Examined(found, tuple(failure for task in tasks for failure in task.failures))

    def _to_recompute(self, streamed: Streamed) -> dict[str, int]:
        """Return the replayed steps that the reference run recomputes: weights file name -> step.

        The steps are drawn from the nonce of the run. No process with a plugin knows the nonce
        (rule L1).
        """
        drawn = self._drawn(streamed)
        if drawn is None or self._config.mode is not Mode.TRAIN:
            return {}
        if is_cpu(self._config.device) or drawn.rough:
            return {}  # on a CPU the reference run itself replays
        steps = drawn.recomputed(drawn.steps_compared(len(streamed.timing.commitments)))
        return {audited.replayed_weights(step): step for step in steps}

    def _again(
        self, streamed: Streamed, shown: _AuditTask, right: _AuditTask
    ) -> tuple[_AuditTask, ...]:
        """Return the task of recomputing replayed steps; empty where no drawn step was replayed.

        The result is also empty where the honest run left out the weights of a drawn step. Then
        rule L1 is not observed.
        """
        drawn = sorted(shown.to_recompute.values())
        due = [step for step in drawn if step in shown.commitments]
        whole = due and due == sorted(shown.weights) and audited.REPLAYED in shown.evidence
        if not whole or right.failures:
            return ()
        scratch = self._folders.scratch
        assert scratch is not None
        heavy = reference_on_device(self._config, self._negotiated.offer.lacks)
        order = RecomputeOrder(
            config=self._config,
            device=self._config.device if heavy else "cpu",
            steps=tuple(
                KeptStep(
                    index=step,
                    token_seed=streamed.token_seeds[step],
                    commitment=shown.commitments[step],
                    weights=audited.replayed_weights(step),
                    sha256=shown.weights[step],
                )
                for step in due
            ),
            judged=self._judged_rows(streamed) if heavy else (),
            evidence_folder=str(self._folders.evidence.resolve()),
            scratch_folder=str(scratch.resolve()),
            digests={**streamed.evidence, **shown.evidence},
        )
        return (replace(right, order=order, evidence={}, failures=[], is_over=False),)

    def _judged(self, streamed: Streamed) -> tuple[int, ...]:
        """Return the judged steps with weights: after a full disk, a resumed audit has none."""
        steps = (stop.step for stop in streamed.timing.stops)
        return tuple(step for step in steps if audited.judged_weights(step) in streamed.scratch)

    def _judged_rows(self, streamed: Streamed) -> tuple[KeptStep, ...]:
        """Return the judged steps whose elements are in the rows of every step."""
        if not self._every_step(streamed):
            return ()
        return tuple(
            KeptStep(
                index=step,
                token_seed=streamed.token_seeds[step],
                commitment=streamed.timing.commitments[step],
                weights=audited.judged_weights(step),
                sha256=streamed.scratch[audited.judged_weights(step)],
            )
            for step in self._judged(streamed)
        )

    def _task(
        self, module: str, what: str, order: HonestOrder | ReferenceOrder, process: ExitStack
    ) -> _AuditTask:
        """Start a process for ``order``; closing ``process`` ends the started process."""
        is_honest = module == _HONEST_RUN
        variables = self._negotiated.terms.environment
        if not is_honest:
            variables = {name: variables[name] for name in _OF_THE_HOST if name in variables}
        child = process.enter_context(self._started(module, variables))
        minutes = self._negotiated.offer.lacks.minutes_per_program
        vigil = (
            Vigil(child, self._config.device, minutes) if is_honest else Vigil(child, "cpu", None)
        )
        names = audited.BY_HONEST_RUN if is_honest else audited.BY_REFERENCE_RUN
        if order.stream is not None or order.calls is not None:
            names |= audited.BY_REPETITION
        return _AuditTask(child, what, order, names, process.close, vigil)

    @contextmanager
    def _started(self, module: str, variables: Mapping[str, str]) -> Iterator[Child]:
        """Give a started process before the process has introduced itself."""
        with self._log() as log:
            with idle_waiting():  # the child is not timed, and another process may need the cores
                child = Child(module, variables, log)
            try:
                yield child
            finally:
                child.end()

    def _orders(self, streamed: Streamed) -> tuple[HonestOrder, ReferenceOrder]:
        """Return the orders for honest run and reference run.

        Raises:
            RunFailedError: the worker left no usable evidence file, such as ``PROBED``.
        """
        probed = self._read(streamed, audited.PROBED, audited.ProbedEvidence)
        steps = self._read(streamed, audited.STEPS, audited.StepsEvidence)
        weights = self._read(streamed, evidence.WEIGHTS, evidence.WeightsEvidence)
        libraries: tuple[evidence.Library, ...] = ()
        if self._only is None:
            names = self._read(streamed, evidence.NAMESPACE, evidence.NamespaceEvidence)
            libraries = names.libraries
        trains, scratch = self._config.mode is Mode.TRAIN, self._folders.scratch
        every_step, judged = self._every_step(streamed), self._judged(streamed)
        due = [stop.step for stop in streamed.timing.stops if not every_step]
        _check_asked(streamed, probed, steps, due if trains else None)
        self._check_shown(streamed)
        # Without training, every step has the weights of the last step.
        kept = next((step for step in steps.steps if step.weights_kept), None)
        if trains or audited.LIVE_WEIGHTS not in streamed.scratch:
            kept = None
        probes = probed.passes if audited.LIVE_WEIGHTS in streamed.scratch else ()
        steps_again = tuple(map(audited.judged_pass, judged))
        passes = (*probes, *(["step"] if kept else []), *steps_again)
        if self._only is not None:
            passes = tuple(name for name in self._only.passes if name in probed.passes)
        # A probe has one sequence; the passes "live" and "step", and judged steps, the full batch.
        # The reference run computes judged steps again, after the honest run has ended, if torch
        # knows the device without a plugin: its result counts (``reduced``).
        heavy: tuple[str, ...] = ()
        if reference_on_device(self._config, self._negotiated.offer.lacks):
            heavy = tuple(p for p in passes if p in ("live", "step", *steps_again))
        assert scratch is not None
        common = {
            "config": self._config,
            "seed": probed.seed,
            "token_seeds": {"live": probed.token_seed}
            | ({"step": kept.token_seed} if kept else {})
            | {audited.judged_pass(step): streamed.token_seeds[step] for step in judged},
            "judged": judged,
            "every_step": every_step,
            "evidence_folder": str(self._folders.evidence.resolve()),
            "scratch_folder": str(scratch.resolve()),
            "digests": {**streamed.evidence, **streamed.scratch},
            "only": self._only,
        }
        # On a CPU ``reference_run`` repeats steps and calls: no plugin has a part in them.
        again = {
            "stream": self._stream(streamed) if trains else None,
            "calls": None if trains else self._calls(streamed),
        }
        on_host, own = is_cpu(self._config.device), passes
        if every_step and on_host:
            own = tuple(name for name in passes if name not in steps_again)
        honest = {
            "passes": own,
            "borders": self._config.audit.has_census,
            "reference_passes": heavy,
            "library_modules": [m for one in libraries for m in one.modules],
            "rates": self._rates(streamed) if trains else (),
            **({} if on_host else again),
        }
        reference = {
            "passes": tuple(name for name in passes if name not in heavy),
            "stored_dtypes": {p.name: p.dtype for p in weights.processed},
            "shared": self._side_by_side(),
            **(again if on_host else {}),
        }
        return (
            HonestOrder.model_validate({**common, **honest}),
            ReferenceOrder.model_validate({**common, **reference}),
        )

    def _check_shown(self, streamed: Streamed) -> None:
        """Compare the gradients of judged steps with the digests that the worker sent in them.

        Raises:
            RunFailedError: gradients were changed after the step, or are missing.
        """
        if not streamed.shown:
            return
        name = audited.STEP_VALUES
        try:
            seen = packed((self._folders.evidence / name).read_bytes())
        except (OSError, ValueError) as error:
            raise RunFailedError(f"{name} cannot be read: {error}") from error
        for step, digest in streamed.shown.items():
            shown = seen.get(f"{step}/gradient")
            if shown is None or hashlib.sha256(shown.data).hexdigest() != digest:
                raise RunFailedError(f"the gradients of step {step} changed after the step")

    def _stream(self, streamed: Streamed) -> StreamToReplay | None:
        """Return the steps to replay: the first steps, while honest runs stay close (rule L1)."""
        drawn, steps = self._drawn(streamed), len(streamed.timing.commitments)
        if drawn is None:
            return None
        count = drawn.steps_compared(steps)
        return StreamToReplay(
            token_seeds=streamed.token_seeds[:count],
            rates=self._rates(streamed),
            least=drawn.least_replayed(count),
            seconds=draws.REPLAY_S,
        )

    def _rates(self, streamed: Streamed) -> tuple[float, ...]:
        """Return the learning rate of each step; empty where the worker left no ledger."""
        drawn, steps = self._drawn(streamed), len(streamed.timing.commitments)
        return () if drawn is None else tuple(drawn.rate(step) for step in range(steps))

    def _calls(self, streamed: Streamed) -> CallsToReplay | None:
        """Return the calls to repeat, drawn from all calls (rule L1)."""
        drawn = self._drawn(streamed)
        if drawn is None:
            return None
        turn = drawn.calls_compared(len(streamed.timing.commitments))
        return CallsToReplay(
            calls=tuple(
                CallToReplay(
                    index=call, token_seed=streamed.token_seeds[call], places=drawn.places(call)
                )
                for call in turn
            ),
            least=drawn.least_replayed(len(turn)),
            seconds=draws.REPLAY_S,
        )

    def _drawn(self, streamed: Streamed) -> Draws | None:
        """Return the draws for the steps; None where the worker left no ledger."""
        nonce, left = streamed.timing.nonce, set(streamed.evidence)
        if nonce is None or not {audited.LEDGER, audited.LEDGER_VALUES} <= left:
            return None
        workload = workloads.of(self._config)
        return Draws.of_run(
            self._config,
            workload.recipe.optimizer,
            nonce,
            ledger=True,
            dropout=workload.drops,
            stamp=streamed.timing.stamp,
        )

    def _every_step(self, streamed: Streamed) -> bool:
        """Tell whether gradients of every step are compared; if so, no step's weights were kept."""
        drawn, trains = self._drawn(streamed), self._config.mode is Mode.TRAIN
        return trains and drawn is not None and drawn.compares_all(len(streamed.timing.commitments))

    def _side_by_side(self) -> bool:
        """Tell whether honest run and reference run work at the same time."""
        if is_cpu(self._config.device):
            return False
        needed = _HOST_BYTES * parameter_count(workloads.of(self._config).shape)
        return host.available_memory_bytes() >= needed

    def _do(self, *tasks: _AuditTask) -> None:
        """Send the orders of all open ``tasks``, and take messages until every task is over.

        The process of an honest run ends with the task. After the end, no vendor's code runs.
        """
        waiting = [task for task in tasks if not task.is_over]
        for task in waiting:
            of_honest = task.child.module == _HONEST_RUN
            self._progress.enter(RunPhase.HONEST_RUN if of_honest else RunPhase.REFERENCE)
            self._say(f"computing {task.what}")
            task.child.send(task.order)
            task.vigil.restart()
            task.deadline_ns = self._deadline_ns()
        while waiting:
            for task in tuple(waiting):
                try:
                    heard = self._hear(task, _IDLE_S / len(waiting))
                except LlmbError as error:
                    self._failed(task, error)
                else:
                    if not heard:
                        moments = (task.vigil.moment() for task in waiting)
                        self._show(next((moment for moment in moments if moment), None))
                if task.is_over:
                    waiting.remove(task)
                    if task.child.module == _HONEST_RUN:
                        task.end()

    def _failed(self, task: _AuditTask, error: LlmbError) -> None:
        """Note that the process of ``task`` failed; the run goes on without the task's evidence.

        Raises:
            LlmbError: the run cannot go on.
        """
        if not endings.goes_on(self._progress.phase, error):
            raise error
        task.fail(error)

    def _hear(self, task: _AuditTask, timeout_s: float) -> bool:
        """Take the next message of a task's process; tell whether a message came in time.

        Args:
            task: the task of the process.
            timeout_s: seconds to wait for a message.

        Raises:
            LlmbError: the process failed, sent a message out of turn, or was silent for too long.
        """
        message = task.child.receive(timeout_s)
        if isinstance(message, EvidenceFile) and message.name in task.names:
            task.evidence[message.name] = message.sha256
        elif isinstance(message, EvidenceFile) and task.awaits(message.name):
            task.weights[task.to_recompute[message.name]] = message.sha256
        elif isinstance(message, EvidenceFile) and message.name in self._of_part:
            task.evidence[message.name] = message.sha256
        elif isinstance(message, Paused) and task.may_pause(message.index):
            if message.index == 0:
                task.commitments.clear()
            task.commitments[message.index] = message.commitment
            kept = message.index in task.to_recompute.values()
            task.child.send(KeepWeights() if kept else Proceed())
        elif isinstance(message, Unmade):
            task.failures.append(f"{message.what} failed: {message.reason}")
        elif isinstance(message, Phase):
            self._say(f"computing {task.what}: {message.name}")
            task.vigil.restart()
        elif isinstance(message, Done):
            task.is_over = True
        elif isinstance(message, Tick) and task.child.module == _REFERENCE_RUN:
            task.vigil.restart()
        elif message is not None or clock.now_ns() >= task.deadline_ns:
            said = "nothing" if message is None else repr(message.kind)
            raise RunFailedError(f"{task.child.module} said {said} while it worked")
        if message is not None:
            task.deadline_ns = self._deadline_ns()
        return message is not None

    def _deadline_ns(self) -> int:
        """Return the time, in nanoseconds, at which a silent process counts as hanging.

        The limit is one hour from now. The limit is longer for a device with a slow compiler, or
        for a large computation on the host.
        """
        limit_s = self._negotiated.offer.lacks.patience_s(_LIMIT_S)
        return clock.now_ns() + int(max(limit_s, host_patience_s(self._config)) * 1e9)

    def _read(self, streamed: Streamed, name: str, kind: type[E]) -> E:
        if name not in streamed.evidence:
            raise RunFailedError(f"the worker left no {name}")
        try:
            return kind.model_validate_json((self._folders.evidence / name).read_bytes())
        except (OSError, ValidationError) as error:
            raise RunFailedError(f"{name} cannot be read: {error}") from error


def _check_asked(
    streamed: Streamed,
    probed: audited.ProbedEvidence,
    steps: audited.StepsEvidence,
    judged: Sequence[int] | None,
) -> None:
    """Compare the audited steps in the worker's evidence with the supervisor's audit requests.

    Raises:
        RunFailedError: steps, token seeds or seeds of sampled indices differ, or the kept weights
            are of other steps than ``judged`` (None, without training: the latest audited step).
    """
    shown = {s.index: AuditedRequest(s.seed, s.token_seed, last=False) for s in steps.steps}
    shown[probed.last_step] = AuditedRequest(probed.seed, probed.token_seed, last=True)
    if shown != dict(streamed.asked):
        raise RunFailedError("the worker shows other steps than those it was asked for")
    due = [s.index for s in steps.steps][-1:] if judged is None else [*judged]
    if [s.index for s in steps.steps if s.weights_kept] != due:
        raise RunFailedError("the worker kept other weights than those that were due")
