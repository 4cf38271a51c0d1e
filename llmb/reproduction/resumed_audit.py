"""Finish the audit of a run that ended early, from the evidence on disk.

No random draw is repeated: steps, sampled indices and tokens follow from the nonce in the record.
Honest run and reference run are executed now. Evidence that needs the running worker stays "not
observed". The user could read the nonce before, so the run stays a debug run.
"""

from __future__ import annotations

import hashlib
import shutil
from dataclasses import dataclass, replace
from pathlib import Path

from llmb import clock, endings, workloads
from llmb.audit.bench import UnreadableError, facts_of
from llmb.audit.judgement import judge
from llmb.config import RunConfig, RunRequest
from llmb.errors import BundleRefusedError, RunFailedError, UnavailableError, UsageError
from llmb.measure.summary import fraction_of_ceiling
from llmb.plugin import discovery
from llmb.records import evidence
from llmb.records.canonical import pretty_bytes
from llmb.records.ceiling import Ceilings
from llmb.records.draws import Draws
from llmb.records.run_directory import AUDIT, UNFINISHED, RunDirectory
from llmb.records.run_record import Interruption, PrecisionFacts, RunRecord
from llmb.records.seeds import token_seed
from llmb.reference import pins
from llmb.supervision import forecast
from llmb.supervision.assembly import NO_CEILING
from llmb.supervision.auditing import Examined, Folders
from llmb.supervision.choices import check_installed
from llmb.supervision.negotiation import negotiate
from llmb.supervision.run_phases import Display, RunPhases
from llmb.supervision.stream import AuditAnswers, AuditedRequest, Streamed, plan_window
from llmb.wire.messages import AuditRequest


@dataclass(frozen=True)
class _OpenAudit:
    """A run directory with an unfinished audit."""

    path: Path
    record: RunRecord
    interruption: Interruption

    def with_ceilings(self, ceilings: Ceilings) -> _OpenAudit:
        """Return the audit with ``ceilings``, measured around the audit: the run had no end."""
        record = self.record
        fraction = fraction_of_ceiling(
            record.timing, record.workload, record.config.parallelism.world_size, ceilings
        )
        changes = {
            "ceilings": ceilings,
            "result": record.result.model_copy(update={"fraction_of_ceiling": fraction}),
            "warnings": tuple(said for said in record.warnings if said != NO_CEILING),
        }
        return replace(self, record=record.model_copy(update=changes))


def check(path: Path, record: RunRecord) -> None:
    """Refuse a run if the audit cannot be finished.

    Raises:
        UsageError: the run at ``path`` did not end early, or the audit is already finished.
        BundleRefusedError: an evidence file is missing, or differs from the digest in the record.
    """
    _open_audit(path, record)


def _open_audit(path: Path, record: RunRecord) -> _OpenAudit:
    found = record.interruption
    if not path.is_dir():
        raise UsageError(f"--resume {path}: give the run directory, which has the evidence")
    if found is None:
        raise UsageError(f"--resume {path}: this run did not end early; its audit is finished")
    if found.resumed_utc is not None:
        raise UsageError(f"--resume {path}: this audit was finished at {found.resumed_utc}")
    if not found.evidence:
        raise UsageError(
            f"--resume {path}: the run ended {found.phase}; the audits of all repeats whose "
            "windows are complete are finished"
        )
    for name, digest in sorted(found.evidence.items()):
        file = path / name
        if not file.is_file():
            raise BundleRefusedError(f"{file}: this evidence is missing, so nothing can be judged")
        if hashlib.sha256(file.read_bytes()).hexdigest() != digest:
            raise BundleRefusedError(f"{file}: this evidence is not what the record says: altered")
    return _OpenAudit(path, record, found)


def resume(path: Path, record: RunRecord, request: RunRequest, display: Display) -> RunRecord:
    """Execute honest run and reference run for the run at ``path``, judge, and return the record.

    ``request`` has the configuration of ``record``.

    Raises:
        LlmbError: the audit cannot be finished here; the run directory is unchanged.
        Interrupted: a signal came, such as SIGINT; the run directory is unchanged.
    """
    there = _open_audit(path, record)
    check_installed(request.executor)
    progress, repeat = endings.RunProgress(), there.interruption.repeat
    display.foresee(_forecast(record, repeat, progress))
    display.phase("asking the plugins")
    negotiated = negotiate(request, workloads.of(request))
    _check_same_plugin(record)
    inputs = {"data": negotiated.config.data, "weights": negotiated.config.weights}
    config = record.config.model_copy(update=inputs)
    directory = RunDirectory.reopened(path)
    line = RunPhases(
        workloads.of(config),
        negotiated,
        directory,
        display,
        run_id=record.run_id,
        progress=progress,
    )
    streamed = _streamed(there, config)
    with directory.scratch_folder(repeat) as scratch:
        for name in streamed.scratch:
            (scratch / name).symlink_to((path / UNFINISHED / name).resolve())
        folders = Folders(path / evidence.path(repeat, ""), scratch)
        before = line.ceiling(config)
        examined = line.examined(config, folders, streamed)
    if examined.ended is not None:
        directory.log(examined.failures[0])
        raise examined.ended
    after = line.ceiling(config)
    if before is not None and after is not None:
        there = there.with_ceilings(Ceilings(before=before, after=after))
    line.progress.enter(endings.RunPhase.JUDGING)
    line.say("judging and writing the record")
    with endings.held():
        finished = _finished(there, examined)
        directory.write(AUDIT, pretty_bytes(finished.audit))
        directory.finish(pretty_bytes(finished))
        shutil.rmtree(path / UNFINISHED, ignore_errors=True)
    return finished


def _forecast(record: RunRecord, repeat: int, progress: endings.RunProgress) -> forecast.Forecast:
    """Return the foreseen parts of the audit, from the measured steps of the run."""
    timing = record.timing.repeats[repeat]
    step_s = (timing.stop_ns - timing.start_ns) / 1e9 / timing.timed_steps
    return forecast.of_audit(progress, step_s, len(timing.commitments), record.config.audit)


def _check_same_plugin(record: RunRecord) -> None:
    """Check the files of the installed plugin against the digests in the record.

    Raises:
        UnavailableError: a file is missing or differs.
    """
    root = discovery.source_root(discovery.find(record.config.plugin).module).folder
    for file in record.plugin.files:
        source = root / file.path
        same = source.is_file() and hashlib.sha256(source.read_bytes()).hexdigest() == file.sha256
        if not same:
            raise UnavailableError(
                f"--resume: {file.path} of plugin {record.plugin.name!r} is not the file of the "
                f"run; install {record.plugin.distribution} {record.plugin.version} again"
            )


def _streamed(there: _OpenAudit, config: RunConfig) -> Streamed:
    """Return the worker's stream, rebuilt from record and evidence."""
    repeat = there.interruption.repeat
    timing = there.record.timing.repeats[repeat]
    if timing.nonce is None:
        raise UsageError(f"--resume {there.path}: the record has no nonce; an older llmb made it")
    workload = workloads.of(config)
    drawn = Draws.of_run(
        config,
        workload.recipe.optimizer,
        timing.nonce,
        ledger=bool(timing.commitments),
        dropout=workload.drops,
    )
    window = plan_window(config, drawn)
    answers = AuditAnswers(window, replace(drawn, stamp=timing.stamp))
    seeds = tuple(
        token_seed(config.seed, repeat, step, answers.drawn.nonce_at(step))
        for step in range(window.end + 1)
    )
    asked = {}
    for step in (*window.audits, window.end):
        answer = answers.to(step)
        assert isinstance(answer, AuditRequest)
        asked[step] = AuditedRequest(answer.seed, seeds[step], answer.last)
    prefix = evidence.path(repeat, "")
    left = {
        name.removeprefix(prefix): digest for name, digest in there.interruption.evidence.items()
    }
    weights = {
        name: digest
        for name, digest in there.interruption.weights.items()
        if (there.path / UNFINISHED / name).is_file()
    }
    return Streamed(timing, None, left, weights, None, asked, seeds)


def _finished(there: _OpenAudit, examined: Examined) -> RunRecord:
    """Return the record with verdict and precision judged from the completed evidence.

    Raises:
        RunFailedError: an evidence file cannot be read.
    """
    record, interruption = there.record, there.interruption
    facts = replace(
        facts_of(record, record.plugin.files, pins.actual_digests()),
        pinned=pins.pinned_digests(),
    )

    def file(name: str) -> bytes | None:
        path = there.path / name
        return path.read_bytes() if path.is_file() else None

    try:
        judged = judge(file, facts)
    except UnreadableError as error:
        raise RunFailedError(str(error)) from error
    finished = interruption.model_copy(
        update={
            "resumed_utc": clock.utc_now().isoformat().replace("+00:00", "Z"),
            "evidence": {},
            "weights": {},
        }
    )
    waived = tuple(w for w in record.waivers if w != interruption.text)
    said = tuple(w for w in record.warnings if not w.startswith("the audit ended early"))
    return record.model_copy(
        update={
            "waivers": (*waived, finished.text),
            "interruption": finished,
            "warnings": (*said, *examined.failures),
            "audit": judged.audit,
            "precision_recipe": judged.precision_recipe,
            "precision": PrecisionFacts(
                declared=record.precision.declared,
                effective=judged.effective,
                bits=judged.bits,
                how="measured" if judged.precision_observed else "not observed",
            ),
        }
    )
