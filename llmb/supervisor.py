"""One run, as a straight line. READ THIS FIRST.

The supervisor is the trusted process, with the clock, the seeds and the record. The supervisor
imports neither torch nor a plugin. Torch and plugins run only in child processes, such as the
worker. Child processes work in turn, except for the plugins' offers and, on a device, for honest
run and reference run.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Literal

from llmb import clock, endings, workloads
from llmb.config import RankAddress, RunConfig, RunRequest
from llmb.endings import Interrupted, RunPhase, RunProgress
from llmb.errors import LlmbError, UnavailableError
from llmb.measure import host
from llmb.parallel.place import last_of
from llmb.records import run_tags
from llmb.records.canonical import pretty_bytes
from llmb.records.ceiling import Ceiling, Ceilings
from llmb.records.reproduction import Original
from llmb.records.run_directory import LOG, RunDirectory, check_writable
from llmb.records.run_record import Interruption, RunRecord
from llmb.records.seed_commitment import SeedCommitment
from llmb.supervision import following, forecast, run_phases, selection
from llmb.supervision.assembly import Raw, Repeat, assemble, interruption_of
from llmb.supervision.choices import check_installed
from llmb.supervision.forecast import Forecast
from llmb.supervision.negotiation import Negotiated, negotiate
from llmb.supervision.run_phases import Display, RunPhases
from llmb.supervision.run_settings import CONFIG, as_toml, settings_of
from llmb.supervision.space import check_space
from llmb.supervision.time_authority import TimeAuthority
from llmb.wire import forking


@dataclass(frozen=True)
class Finished:
    """The record and the run directory of a finished run."""

    record: RunRecord
    path: Path


@dataclass
class _RunOutcome:
    """The results left by a run that ended early."""

    is_recorded: bool = False
    interruption: Interruption | None = None


@dataclass(frozen=True)
class RunContext:
    """The facts of a run settled before the start of the first worker."""

    request: RunRequest
    negotiated: Negotiated
    directory: RunDirectory
    display: Display
    place: RankAddress | None
    commitment: SeedCommitment | None
    original: Original | None
    #: Server for time stamps; None without time stamps. ``notes`` name a server without an answer.
    authority: TimeAuthority | None
    notes: tuple[str, ...]
    created: datetime
    began_ns: int
    progress: RunProgress
    forecast: Forecast
    kept: _RunOutcome


def run(
    request: RunRequest,
    output: Path,
    display: Display,
    commitment: SeedCommitment | None = None,
    original: Original | None = None,
    place: RankAddress | None = None,
    authority: TimeAuthority | None = None,
    tags: Sequence[str] = (),
) -> Finished:
    """Carry out ``request`` and leave a complete run directory in ``output``.

    ``commitment`` gives the run's seed. ``commitment`` and ``original`` stay in this process and
    are no part of the request, because requests are sent to probes. ``original`` is the bundle to
    reproduce: a plugin need not know of the reproduction. With ``place``, this is the supervisor of
    rank 0; supervisors of ranks 1 and up call ``follow``. ``authority`` is a server for time
    stamps; without an answer from the server, the run goes on without time stamps. ``tags`` are
    local labels of the run directory, and no part of the record.

    Raises:
        LlmbError: the run cannot be done, or failed; an existing run directory says why.
    """
    began_ns = clock.now_ns()
    if commitment is not None:
        request = request.model_copy(update={"seed": commitment.seed})
    workload = workloads.of(request)
    request = request.model_copy(update={"mode": workloads.mode_of(workload, request.mode)})
    check_installed(request.executor)
    check_writable(output)
    progress, kept, directory = RunProgress(), _RunOutcome(), None
    try:
        with forking.noted() as starts:
            expected = forecast.of_request(request, workload, progress)
            display.foresee(expected)
            display.phase("asking the plugins")
            negotiated = negotiate(request, workload, place, estimate=True)
            created, config = clock.utc_now(), negotiated.config
            searches = _searches(request, negotiated, place)
            forecast.settle(expected, config, negotiated.estimate, searches=searches)
            label = f"{config.workload}-{config.precision.name}-{config.plugin}"
            check_space(output, config, workloads.of(config))
            progress.enter(RunPhase.CEILINGS)
            with endings.held():
                directory = RunDirectory(output, created, label)
                for tag in tags:
                    run_tags.add(directory.path, tag)
                _write_settings(directory, config, request.batch_size)
            authority, notes = _tried(authority)
            context = RunContext(
                request,
                negotiated,
                directory,
                display,
                place,
                commitment,
                original,
                authority,
                notes,
                created,
                began_ns,
                progress,
                expected,
                kept,
            )
            return _run(context, starts)
    except (LlmbError, KeyboardInterrupt) as error:
        if directory is None:
            raise
        raise _told(error, directory, progress, kept, place) from error
    except BaseException as error:
        if directory is not None:
            directory.abandon(f"{type(error).__name__}: {error}")
        raise


def _run(context: RunContext, starts: Mapping[str, str]) -> Finished:
    """Carry out a run; ``starts`` collects the start method of each kind of process.

    Example: "forked". A run that ends early leaves a record of the repeats with complete windows.
    """
    request, negotiated, directory = context.request, context.negotiated, context.directory
    _announce((*negotiated.notes, *context.notes), negotiated, directory, context.display)
    load_before = host.load()
    search, config = None, negotiated.config
    line = RunPhases(
        workloads.of(config),
        negotiated,
        directory,
        context.display,
        profile=request.profile,
        place=context.place,
        rank_timeout_s=request.rank_timeout_s,
        authority=context.authority,
        progress=context.progress,
        forecast=context.forecast,
    )
    repeats: list[Repeat] = []
    before, after, linked, ended, where = None, None, None, None, ""
    try:
        if _searches(request, negotiated, context.place):
            search = line.search_batch_size(config)
            config = config.model_copy(update={"batch_size": search.best})
            _write_settings(directory, config, search.best)
        before = line.ceiling(config)
        linked = line.interconnect(config)
        for number in range(config.repeats):
            repeats.append(line.repeat(config, number))
            if (ended := repeats[-1].ended) is not None:
                raise ended
        after = line.ceiling(config)
    except (LlmbError, KeyboardInterrupt) as error:
        if not repeats:
            raise
        ended, where = error, context.progress.text

    interruption = None
    if ended is not None:
        interruption = interruption_of(ended, where, repeats, config.repeats)
        directory.log(interruption.text)
        config = config.model_copy(update={"repeats": len(repeats)})
    context.progress.enter(RunPhase.JUDGING)
    with endings.held():
        line.say("judging and writing the record")
        raw = Raw(
            run_id=line.run_id,
            created=context.created,
            config=config,
            workload=workloads.of(config),
            negotiated=negotiated,
            search=search,
            ceilings=Ceilings(before=before, after=after) if before and after else None,
            interconnect=linked,
            repeats=tuple(repeats),
            load_before=load_before,
            load_after=host.load(),
            processes=dict(starts),
            real_s=(clock.now_ns() - context.began_ns) / 1e9,
            seed_commitment=context.commitment,
            original=context.original,
            notes=context.notes,
            interruption=interruption,
        )
        record = assemble(raw, directory)
        directory.log(f"finished: {record.result.tokens_per_second:.2f} tokens/s")
        directory.finish(pretty_bytes(record))
        context.kept.is_recorded, context.kept.interruption = True, interruption
    if ended is not None:
        raise ended
    return Finished(record, directory.path)


def _searches(request: RunRequest, negotiated: Negotiated, place: RankAddress | None) -> bool:
    """Tell whether the run begins with a search for the batch size."""
    return place is None and selection.wants_search(negotiated.offer, request.batch_size)


def _write_settings(
    directory: RunDirectory, config: RunConfig, batch_size: int | Literal["auto"] | None
) -> None:
    """Write ``config.toml``: the settings of the run, to repeat them by ``llmb run --config``."""
    settings = settings_of(config)
    if batch_size == "auto":
        settings["batch-size"] = batch_size
    directory.write(CONFIG, as_toml(settings))


def _told(
    error: LlmbError | KeyboardInterrupt,
    directory: RunDirectory,
    progress: RunProgress,
    kept: _RunOutcome,
    place: RankAddress | None,
) -> LlmbError | Interrupted:
    """Return ``error`` as a single line with the run directory and the next command to use."""
    path = directory.path
    stopped = isinstance(error, KeyboardInterrupt)
    said = str(error) or "interrupted"
    if not kept.is_recorded:
        # A launcher, such as torchrun, ends all ranks after the failure of a rank.
        why = ", maybe by its launcher because another rank had failed" if stopped and place else ""
        directory.abandon(f"{said} {progress.text}{why}" if stopped else said)
        there = f"see {path / LOG}"
        if isinstance(error, LlmbError):
            return type(error)(f"{said} ({there})")
        said, there = f"{said} {progress.text}", f"no result, {there}"
    elif kept.interruption is None:
        there = f"the run was complete by then: {path}"
    else:
        said, there = f"{said} {kept.interruption.phase}", f"the timing is kept: {path}"
        if kept.interruption.evidence:
            there += f"; to finish its audit: llmb audit --resume {path}"
    if isinstance(error, LlmbError):
        return type(error)(f"{said}: {there}")
    by = error.by if isinstance(error, Interrupted) else "SIGINT"
    return Interrupted(by, f"{said}: {there}")


def foresee(request: RunRequest, nproc: int) -> None:
    """Refuse a run that ``nproc`` ranks cannot do on this machine, before any rank is started.

    Raises:
        LlmbError: no plugin serves the request, fewer devices than ranks, or too little memory.
    """
    workload = workloads.of(request)
    request = request.model_copy(update={"mode": workloads.mode_of(workload, request.mode)})
    check_installed(request.executor)
    negotiate(request, workload, last_of(nproc))


def follow(request: RunRequest, place: RankAddress, display: Display) -> None:
    """Carry out the part of rank ``place`` (1 or up) in a run recorded by rank 0's supervisor.

    No file stays on this host: only rank 0 keeps evidence.

    Raises:
        LlmbError: this rank cannot carry out the request, or failed.
    """
    workload = workloads.of(request)
    request = request.model_copy(update={"mode": workloads.mode_of(workload, request.mode)})
    check_installed(request.executor)
    display.phase("asking the plugins")
    negotiated = negotiate(request, workload, place)
    profile, timeout_s = request.profile, request.rank_timeout_s
    following.follow(negotiated, place, timeout_s, display, profile=profile)


def _tried(authority: TimeAuthority | None) -> tuple[TimeAuthority | None, tuple[str, ...]]:
    """Return ``authority`` with a working form of request; a note instead without an answer."""
    if authority is None:
        return None, ()
    try:
        return authority.tried(), ()
    except UnavailableError as error:
        return None, (f"the run has no time stamps: {error}",)


def _announce(
    said: Sequence[str], negotiated: Negotiated, directory: RunDirectory, display: Display
) -> None:
    """Show and log the notes to read before a long wait, such as a slow format."""
    directory.log(negotiated.log)
    notes = list(said)
    if negotiated.config.precision.is_slow:
        slow = negotiated.config.precision.name
        notes.append(f"{negotiated.config.device} only emulates {slow}: expect it to be very slow")
    for note in notes:
        display.note(note)
        directory.log(note)


def calibrate(request: RunRequest, seconds: float) -> Ceiling:
    """Return the ceilings of the device chosen by ``request``, without a run.

    Raises:
        LlmbError: the device is not available, or the measuring process failed.
    """
    workload = workloads.of(request)
    negotiated = negotiate(request, workload)
    precision = negotiated.config.precision
    if precision.is_slow:
        raise UnavailableError(
            f"--precision {precision.name}: {negotiated.config.device} only emulates it, and what "
            "it attains so is no ceiling: use another"
        )
    config = negotiated.config.model_copy(update={"precision": precision.computing})
    with tempfile.TemporaryFile() as log:
        return run_phases.calibrate(negotiated, config, seconds, log)
