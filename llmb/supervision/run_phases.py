"""The phases of a run that need a child process, such as the ceilings or a timed window.

Each phase starts a child, listens to the child's messages and ends the child.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Literal, Protocol

from llmb import clock, endings
from llmb.config import AuditMode, Mode, RankAddress, RunConfig
from llmb.endings import Kept, RunPhase, RunProgress
from llmb.errors import LlmbError, NotEnoughMemoryError
from llmb.measure import statistics
from llmb.records import audited, draws, evidence, time_stamp
from llmb.records.audited import OnePart
from llmb.records.ceiling import Ceiling
from llmb.records.draws import Draws
from llmb.records.interconnect import Interconnect
from llmb.records.run_directory import CALLS_FOLDER, PROFILE_FOLDER, RunDirectory
from llmb.records.run_record import BatchTrial, SearchLog
from llmb.supervision import batch_search, interconnect, memory, underflow
from llmb.supervision.assembly import Repeat, waivers
from llmb.supervision.auditing import Examined, Examiner, Folders
from llmb.supervision.forecast import Forecast
from llmb.supervision.negotiation import Negotiated, for_children
from llmb.supervision.reduced import EvidenceFacts, reduced
from llmb.supervision.silence import Silence
from llmb.supervision.stream import Streamed, Window, drive, plan_trial, plan_window
from llmb.supervision.time_authority import TimeAuthority
from llmb.supervision.time_stamps import RepeatStamps
from llmb.wire.child import Child
from llmb.wire.measurements import Calibration, CalibrationOrder
from llmb.wire.messages import Fence, Phase, Tick, WorkOrder
from llmb.workloads import Workload

#: Seconds spent on measuring the ceilings, once before and once after the run.
_CALIBRATION_S = {"official": 4.0, "debug": 0.25}
_CALIBRATION_LIMIT_S = 600.0
#: Timed steps of one trial of the batch-size search.
_TRIAL_STEPS = 3


class Display(Protocol):
    """The place where a run's progress is shown, such as a terminal; a display decides nothing."""

    def foresee(self, forecast: Forecast) -> None:
        """Show the time left by ``forecast`` from now on."""
        ...

    def phase(self, name: str) -> None:
        """Show that ``name`` has begun."""
        ...

    def stream(self, steps: int, tokens_per_step: int, label: str) -> None:
        """Show that a stream of at most ``steps`` steps begins."""
        ...

    def note(self, text: str) -> None:
        """Show a note that the user should read before a long wait."""
        ...

    def message(self, message: Phase | Tick | Fence | Silence | None) -> None:
        """Show a worker's report; None when a moment has passed without a report.

        A ``Silence`` comes once no process of the run has shown anything for a minute.
        """
        ...


class Silent:
    """A display without output."""

    def foresee(self, forecast: Forecast) -> None:
        """Show nothing."""

    def phase(self, name: str) -> None:
        """Show nothing."""

    def stream(self, steps: int, tokens_per_step: int, label: str) -> None:
        """Show nothing."""

    def note(self, text: str) -> None:
        """Show nothing."""

    def message(self, message: Phase | Tick | Fence | Silence | None) -> None:
        """Show nothing."""


@dataclass(frozen=True)
class RunPhases:
    """The phases of one run, in the order in which the supervisor calls the methods."""

    workload: Workload
    negotiated: Negotiated
    directory: RunDirectory
    display: Display
    #: The worker of repeat 0 leaves a profiler trace of one more step.
    profile: bool = False
    #: Address of this rank in a run of several ranks; None in a run of one rank.
    place: RankAddress | None = None
    #: Seconds that a worker waits for another rank.
    rank_timeout_s: float = 600.0
    #: Source of every random draw of llmb, unless the configuration has a nonce.
    nonce: str = field(default_factory=draws.new_nonce)
    run_id: str = field(default_factory=lambda: uuid.uuid4().hex)
    #: Server asked for time stamps of each window; None without time stamps.
    authority: TimeAuthority | None = None
    #: The phase of the run at present, such as warm-up.
    progress: RunProgress = field(default_factory=RunProgress)
    #: The parts of the run, for the display.
    forecast: Forecast = field(default_factory=lambda: Forecast(()))

    def ceiling(self, config: RunConfig) -> Ceiling | None:
        """Return the device's ceiling; None where the measurement fails.

        A format with FP32 products, or a format that torch emulates number by number
        (``is_slow``), cannot be faster than FP32: FP32 products are measured instead. A debug run
        in an emulated format gets no ceiling, because FP32 products could take minutes.
        """
        endings.raise_noted()
        kind = "debug" if waivers(config) else "official"
        if config.precision.is_slow and kind == "debug":
            return None
        config = config.model_copy(update={"precision": config.precision.computing})
        self.progress.enter(RunPhase.CEILINGS)
        self.say("measuring the device's ceiling")
        seconds = _CALIBRATION_S[kind]
        try:
            with self.directory.child_log() as log:
                return calibrate(self.negotiated, config, seconds, log)
        except LlmbError as error:
            if not endings.goes_on(self.progress.phase, error):
                raise
            self.directory.log(f"the ceiling was not measured: {error}")
            return None

    def interconnect(self, config: RunConfig) -> Interconnect | None:
        """Return the links between the ranks; None in a run of one rank.

        Raises:
            LlmbError: the ranks did not meet.
        """
        if self.place is None:
            return None
        endings.raise_noted()
        self.progress.enter(RunPhase.CEILINGS)
        self.say("measuring the links between the ranks")
        try:
            with self.directory.child_log() as log:
                return interconnect.measure(
                    self.negotiated,
                    config,
                    self.place,
                    self.rank_timeout_s,
                    log,
                    self.directory.log,
                )
        except LlmbError as error:
            named = self._of_rank(error)
            if named is error:
                raise
            raise named from error

    def _of_rank(self, error: LlmbError) -> LlmbError:
        """Return ``error`` with the number of this rank, unless a rank is named."""
        if self.place is None or str(error).startswith("rank "):
            return error
        return type(error)(f"rank {self.place.rank}: {error}")

    def repeat(self, config: RunConfig, number: int) -> Repeat:
        """Return one timed window of a fresh worker, with the evidence of the audit."""
        endings.raise_noted()
        of = f" {number + 1} of {config.repeats}" if config.repeats > 1 else ""
        self.progress.enter(RunPhase.WARM_UP)
        self.say(f"starting worker{of}")
        folders = Folders(self.directory.evidence_folder(number), None)
        drawn = self._drawn(config, number)
        window, label = plan_window(config, drawn), f"timing{of}"
        stamps = None
        if self.authority is not None:
            stamps = RepeatStamps(self.authority, self.run_id, number)
        if config.audit is AuditMode.OFF:
            window = replace(window, audits=(), judged=())
            streamed = self._work(config, window, number, label, folders, drawn, stamps=stamps)
            streamed, notes = self._stamped(config, folders, streamed, stamps)
            off = Examined({}, ("the audit was switched off: --audit off",), _ended(streamed))
            return Repeat(streamed, off, notes)
        with self.directory.scratch_folder(number) as scratch:
            folders = Folders(folders.evidence, scratch)
            streamed = self._work(config, window, number, label, folders, drawn, stamps=stamps)
            with endings.held(raises=False):  # ``examined`` keeps a complete window
                streamed, notes = self._stamped(config, folders, streamed, stamps)
            return Repeat(streamed, self.examined(config, folders, streamed), notes)

    def _stamped(
        self, config: RunConfig, folders: Folders, streamed: Streamed, stamps: RepeatStamps | None
    ) -> tuple[Streamed, tuple[str, ...]]:
        """Return ``streamed`` with time stamps, and notes on missing stamps or a weak bound."""
        if stamps is None:
            return streamed, ()
        tokens = self.workload.tokens_per_step(config.global_batch_size, config.new_tokens)
        said = stamps.said(streamed.timing, tokens)
        for name, answer in stamps.answers.items():
            (folders.evidence / name).write_bytes(answer)
        notes = stamps.notes(streamed.timing, said, tokens)
        for note in notes:
            self.directory.log(note)
        timing = streamed.timing.model_copy(update={"time_stamps": said})
        return replace(streamed, timing=timing), notes

    def one_part(
        self, config: RunConfig, only: OnePart, folders: Folders, window: Window
    ) -> Repeat:
        """Return a short stream and the evidence of the passes of ``only`` for one model part.

        The timing of ``window`` is not used. Steps show gradients only if ``window`` has an audited
        step.
        """
        self.say("starting worker")
        drawn = self._drawn(config, 0)
        if not window.audits:
            drawn = replace(drawn, ledger=False)
        streamed = self._work(config, window, 0, only.parameter, folders, drawn, only)
        return Repeat(streamed, self.examined(config, folders, streamed, only))

    def examined(
        self,
        config: RunConfig,
        folders: Folders,
        streamed: Streamed,
        only: OnePart | None = None,
    ) -> Examined:
        """Return the evidence of honest run and reference run, after the worker has ended.

        A signal or a full disk ends the audit early. Then the worker's evidence is kept unchanged.
        After a signal, the worker's full weights are kept, too; a full disk has no room.
        """
        try:
            endings.raise_noted()
            if (ended := _ended(streamed)) is not None:
                raise ended
            return self._examined(config, folders, streamed, only)
        except (LlmbError, KeyboardInterrupt) as error:
            found = endings.ending(self.progress.phase, endings.event_of(error))
            if found.kept is not Kept.TIMING or found.exit_code is None:
                raise
            self._remove_unannounced(folders.evidence, streamed.evidence)
            weights = self._keep_weights(folders, streamed) if found.keeps_weights else {}
            why = f"the audit ended early, {self.progress.text}: {error}"
            return Examined(dict(streamed.evidence), (why,), error, weights)

    def _keep_weights(self, folders: Folders, streamed: Streamed) -> dict[str, str]:
        """Move the worker's full weights to the place that ``llmb audit --resume`` reads."""
        if folders.scratch is None:
            return {}
        kept = {
            name: digest
            for name, digest in streamed.scratch.items()
            if name in audited.weights_of([stop.step for stop in streamed.timing.stops])
        }
        for name in kept:
            self.directory.keep(folders.scratch / name)
        return kept

    def _examined(
        self, config: RunConfig, folders: Folders, streamed: Streamed, only: OnePart | None
    ) -> Examined:
        log, show = self.directory.child_log, self.display.message
        examined = Examiner(
            self.negotiated, config, folders, log, self.say, show, only, self.progress
        ).examine(streamed)
        for failure in examined.failures:
            self.directory.log(failure)
        files = {**streamed.evidence, **examined.evidence}
        nonce, left = streamed.timing.nonce, audited.LEDGER_VALUES in files
        drawn = None
        if nonce is not None and left:
            optimizer, drops = self.workload.recipe.optimizer, self.workload.drops
            stamp = streamed.timing.stamp
            drawn = Draws.of_run(config, optimizer, nonce, ledger=True, dropout=drops, stamp=stamp)
        steps = len(streamed.timing.commitments)
        judged = tuple(stop.step for stop in streamed.timing.stops)
        run = EvidenceFacts(config.precision, config.mode is Mode.TRAIN, steps, drawn, judged)
        with endings.held(raises=False):  # the evidence of the whole audit is complete
            kept = reduced(folders.evidence, files, run)
            self._remove_unannounced(folders.evidence, kept)
        return replace(examined, evidence=kept)

    def _remove_unannounced(self, folder: Path, announced: Mapping[str, str]) -> None:
        """Remove files left by a process before the process failed.

        The judges of the run do not read unannounced files. The judges of the run's bundle would
        read every file, and could reach a different verdict.
        """
        ours = {time_stamp.START, time_stamp.STOP, evidence.REPEAT}
        for path in sorted(folder.iterdir()):
            if path.is_file() and path.name not in {*announced, *ours}:
                path.unlink()
                self.directory.log(f"removed {path.name}: no process that ended well announced it")

    def _drawn(self, config: RunConfig, number: int) -> Draws:
        """Return the draws of one repeat; steps show gradients where the steps can be replayed."""
        why = memory.why_no_ledger(config, self.workload)
        return Draws.of_run(
            config,
            self.workload.recipe.optimizer,
            draws.nonce_of(config.nonce or self.nonce, number),
            ledger=why is None and config.audit is not AuditMode.OFF,
            dropout=self.workload.drops,
        )

    def search_batch_size(self, config: RunConfig) -> SearchLog:
        """Return the log of the search for the best batch size."""
        trial = config.model_copy(update={"timed_steps": _TRIAL_STEPS})

        def measure(batch_size: int) -> BatchTrial:
            return self._trial(trial.model_copy(update={"batch_size": batch_size}))

        most = underflow.most_sequences(config, self.workload)
        end = underflow.cap(config, self.workload)
        if end is not None:
            self.display.note(end)
            self.directory.log(end)
        with self.forecast.searching():
            return batch_search.search(measure, _TRIAL_STEPS, config.accumulate, most)

    def _trial(self, config: RunConfig) -> BatchTrial:
        size, precision = config.batch_size, config.precision
        offer, load = self.negotiated.offer, memory.Load.of(config, self.workload)
        try:
            memory.check_memory(offer, self.workload, precision, config.micro_batch_size, load)
        except NotEnoughMemoryError as error:
            return _no_memory(size, "predicted_out_of_memory", error)
        self.say(f"trying batch size {size}")
        try:
            # A negative repeat number and a fresh nonce: trials learn nothing of the run's tokens.
            window = plan_trial(config)
            drawn = Draws(draws.new_nonce(), self.workload.recipe.optimizer, ledger=False)
            streamed = self._work(config, window, -size, f"batch size {size}", None, drawn)
        except NotEnoughMemoryError as error:
            self.directory.log(f"batch size {size}: {error}")
            return _no_memory(size, "out_of_memory", error)
        tokens = self.workload.tokens_per_step(size, config.new_tokens)
        return BatchTrial(
            batch_size=size,
            status="measured",
            tokens_per_second=statistics.tokens_per_second(streamed.timing, tokens),
            peak_memory_bytes=streamed.timing.peak_memory_bytes,
        )

    def _work(
        self,
        config: RunConfig,
        window: Window,
        number: int,
        label: str,
        folders: Folders | None,
        drawn: Draws,
        only: OnePart | None = None,
        stamps: RepeatStamps | None = None,
    ) -> Streamed:
        streamed = None
        try:
            with (
                self.directory.child_log() as log,
                Child("llmb.processes.worker", self.negotiated.terms.environment, log) as child,
            ):
                child.send(self._order(config, window, number, folders, only))
                streamed = self._driven(child, config, window, number, label, drawn, stamps)
        except KeyboardInterrupt as error:
            if streamed is None:
                raise
            streamed = replace(streamed, failure=error)  # a signal during the worker's end
        except LlmbError as error:
            named = self._of_rank(error)
            if named is error:
                raise
            raise named from error
        return streamed

    def _order(
        self,
        config: RunConfig,
        window: Window,
        number: int,
        folders: Folders | None,
        only: OnePart | None,
    ) -> WorkOrder:
        return WorkOrder(
            config=for_children(config),
            evidence_folder=_text(folders.evidence if folders else None),
            scratch_folder=_text(folders.scratch if folders else None),
            collect_evidence=folders is not None,
            profile_folder=self._profile_folder(folders, number),
            place=self.place,
            repeat=number,
            rank_timeout_s=self.rank_timeout_s,
            calls_folder=str((self.directory.path / CALLS_FOLDER).resolve()) if self.place else "",
            every_step=window.every_step,
            only=only,
        )

    def _driven(
        self,
        child: Child,
        config: RunConfig,
        window: Window,
        number: int,
        label: str,
        drawn: Draws,
        stamps: RepeatStamps | None,
    ) -> Streamed:
        tokens = self.workload.tokens_per_step(config.global_batch_size, config.new_tokens)
        self.display.stream(window.end, tokens, label)
        offer, show = self.negotiated.offer, self.display.message
        return drive(
            child,
            config,
            window,
            number,
            drawn,
            offer.step_clock,
            show,
            offer.lacks,
            stamps,
            self.progress,
        )

    def _profile_folder(self, folders: Folders | None, number: int) -> str:
        wanted = self.profile and folders is not None and number == 0
        return _text(self.directory.path / PROFILE_FOLDER if wanted else None)

    def say(self, phase: str) -> None:
        """Show and log that ``phase`` has begun."""
        self.display.phase(phase)
        self.directory.log(f"{clock.utc_now().isoformat()} {phase}")


def _ended(streamed: Streamed) -> LlmbError | KeyboardInterrupt | None:
    """Return the failure that ends the whole run after a complete window; None without one."""
    failure = streamed.failure
    if failure is None:
        return None
    goes_on = isinstance(failure, LlmbError) and endings.goes_on(RunPhase.EVIDENCE, failure)
    return None if goes_on else failure


def _text(folder: Path | None) -> str:
    return str(folder.resolve()) if folder else ""


def calibrate(negotiated: Negotiated, config: RunConfig, seconds: float, log: IO[bytes]) -> Ceiling:
    """Return the ceiling of the device of ``config``, measured by a separate process.

    Raises:
        LlmbError: the process failed.
    """
    with Child("llmb.processes.ceilings", negotiated.terms.environment, log) as child:
        child.send(CalibrationOrder(config=for_children(config), seconds=seconds))
        limit_s = negotiated.offer.lacks.patience_s(_CALIBRATION_LIMIT_S)
        return child.expect(Calibration, limit_s).ceiling


def _no_memory(
    size: int, status: Literal["out_of_memory", "predicted_out_of_memory"], error: Exception
) -> BatchTrial:
    return BatchTrial(
        batch_size=size,
        status=status,
        tokens_per_second=None,
        peak_memory_bytes=None,
        message=str(error),
    )
