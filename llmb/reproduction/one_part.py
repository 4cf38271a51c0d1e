"""Repeat the judgement of one part of the model by one rule, on this machine.

An accused vendor sees the compared numbers within seconds, without a full run. Example: rule E1 for
``layers.3.mlp.up_proj``. The worker knows the judged part in advance. The result is therefore never
part of a bundle or a verdict.
"""

from __future__ import annotations

import difflib
import math
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from llmb import clock, workloads
from llmb.audit.bench import PROBED, Bench, Files, UnreadableError, facts_of
from llmb.audit.distance import gap
from llmb.audit.one_part import PASSES, parts
from llmb.audit.rule import Evidence, PartFinding
from llmb.config import AuditMode, Mode, RunConfig, RunRequest
from llmb.endings import RunProgress
from llmb.errors import LlmbError, RunFailedError, UsageError
from llmb.families import family_of
from llmb.formats import UNKNOWN
from llmb.records import arrays, audited
from llmb.records.arrays import Array, FileArray, stored
from llmb.records.audited import OnePart, PartSeen
from llmb.records.run_directory import LOG, RunDirectory
from llmb.records.run_record import RunRecord
from llmb.supervision import forecast
from llmb.supervision.assembly import Repeat
from llmb.supervision.auditing import Folders
from llmb.supervision.choices import check_installed
from llmb.supervision.negotiation import negotiate
from llmb.supervision.run_phases import Display, RunPhases
from llmb.supervision.stream import Window

_SEEN = Evidence(audited.PART_SEEN, PartSeen.model_validate_json)
#: Two steps update the weights before the last step, so a stale copy of the weights is detected.
_SHORT = Window(first_fence=1, start=1, stop=2, end=2, every_step=True)
#: Rule L1 replays optimizer steps: step 0 leaves the data for the replay.
_OF_STEPS = Window(first_fence=1, start=1, stop=2, end=4, audits=(0,), every_step=True)
_WHATS = (audited.INPUT, audited.OUTPUT, audited.GRADIENT)
#: Number of evenly spaced elements per tensor for the computation of bits.
_MOST = 2**18
_NEAREST = 3


@dataclass(frozen=True)
class Repeated:
    """The result of a repeated judgement."""

    rule: str
    parameter: str
    finding: PartFinding
    #: The finding in the run's own evidence for the same part; None: no such finding.
    recorded: PartFinding | None
    #: Parts that break the rule here; ``judged`` is the number of all judged parts.
    broken: tuple[str, ...]
    judged: int
    #: The pass of input, output and gradient, such as ``live``.
    pass_name: str
    #: Tensor -> (measured bits, honest bits). Bits: -log2 of the error relative to the reference.
    #: Example: ``{"output": (7.9, 8.1)}``.
    bits: Mapping[str, tuple[float, float]]
    #: Reason for missing input and output; None: both exist.
    why: str | None
    seconds: float

    @property
    def came_in_wrong(self) -> bool:
        """Tell whether the module's input has over one bit less than in the honest run."""
        measured, honest = self.bits.get(audited.INPUT, (0.0, 0.0))
        return measured < honest - 1


@dataclass(frozen=True)
class Question:
    """One part of a recorded run, and one rule."""

    record: RunRecord
    #: The run's own files, by path in the run directory.
    files: Files
    rule: str
    parameter: str

    def recorded(self) -> tuple[PartFinding, ...]:
        """Return the findings per part in the evidence of the run."""
        return recorded(self.record, self.files, self.rule)


def check(record: RunRecord, rule: str) -> None:
    """Refuse a run or a rule without a repeatable judgement.

    Raises:
        UsageError: the rule judges whole runs, the mode is not train, the run has several ranks,
            the precision has no limits, the record has no repeat, or L1 cannot replay a step.
    """
    if rule not in PASSES:
        known = any(rule == finding.id for finding in record.audit.findings)
        told = "this rule looks at a whole run" if known else "there is no such rule"
        raise UsageError(
            f"--only {rule}: {told}; one part can be judged again by {', '.join(PASSES)}"
        )
    if record.config.mode is not Mode.TRAIN:
        raise UsageError(
            f"--only: mode {record.config.mode.value} has logits alone, and no parts; only runs "
            "of mode train can be taken apart"
        )
    if record.config.parallelism.world_size > 1:
        ranks = record.config.parallelism.world_size
        raise UsageError(f"--only: the run has {ranks} ranks; repeat it with one, and take that")
    if record.config.precision.judged_as is None:
        raise UsageError(f"--only: {UNKNOWN}")
    if not record.timing.repeats:
        raise UsageError("--only: the record has no repeat")
    bench = Bench(_nothing, facts_of(record, (), {}), 0)
    why = bench.why_no_ledger or bench.why_rough
    if rule == "L1" and why is not None:
        raise UsageError(
            f"--only L1: no part of a step can be compared: {why}; E1 looks at a single step"
        )


def _nothing(_: str) -> None:
    """Return None: no file exists."""


def recorded(record: RunRecord, files: Files, rule: str) -> tuple[PartFinding, ...]:
    """Return the findings per part from the worst repeat of the run; may be empty."""
    facts = facts_of(record, (), {})
    every = [_parts(rule, Bench(files, facts, n)) for n in range(len(facts.repeats))]
    return max(every, key=lambda found: found[0].badness if found else -math.inf, default=())


def _parts(rule: str, bench: Bench) -> tuple[PartFinding, ...]:
    try:
        return parts(rule, bench)
    except UnreadableError:
        return ()


def parameters(record: RunRecord) -> tuple[str, ...]:
    """Return the canonical names of all parameters of the model."""
    shape = workloads.of(record.config).shape
    return tuple(family_of(shape).parameter_sizes(shape))


def resolve(wanted: str, names: Sequence[str]) -> str:
    """Return the full name of the parameter ``wanted``; prefix and ``.weight`` may be missing.

    Example: ``layers.3.mlp.up_proj`` is ``model.layers.3.mlp.up_proj.weight``.

    Raises:
        UsageError: no parameter has the name (the message lists the nearest names), or several do.
    """
    for name in (wanted, f"{wanted}.weight", f"{wanted}.bias"):
        found = [known for known in names if known == name or known.endswith(f".{name}")]
        if len(found) == 1:
            return found[0]
        if found:
            raise UsageError(f"--part {wanted}: that is {', '.join(found[:_NEAREST])}: name one")
    short = {name.removesuffix(".weight").removeprefix("model."): name for name in names}
    near = difflib.get_close_matches(wanted, short, n=_NEAREST, cutoff=0.0)
    raise UsageError(f"--part {wanted}: the model has no such part (nearest: {', '.join(near)})")


def accused(found: Sequence[PartFinding], names: Sequence[str]) -> str:
    """Return the canonical name of the worst recorded part, the first of ``found``.

    Raises:
        UsageError: ``found`` is empty, or no parameter of the model has the name of the part.
    """
    for one in found[:1]:
        endings = [name for name in names if one.part == name or one.part.endswith(f".{name}")]
        if endings:
            return max(endings, key=len)
        raise UsageError(
            f"--only: {one.part} is accused, which the plugin stores in a form of its own: name a "
            "parameter in it with --part"
        )
    raise UsageError("--only: the evidence beside the record accuses no part: name one with --part")


def repeat(question: Question, request: RunRequest, output: Path, display: Display) -> Repeated:
    """Judge the part of ``question`` again, and write the compared tensors to ``output``.

    Raises:
        LlmbError: the judgement is impossible here, or a process failed; the log is written beside
            ``output`` with the suffix ``.log``.
    """
    began_ns = clock.now_ns()
    check_installed(request.executor)
    progress, once = RunProgress(), {"warmup_steps": 1, "timed_steps": 1, "repeats": 1}
    workload, short = workloads.of(request), request.model_copy(update=once)
    display.foresee(forecast.of_request(short, workload, progress))
    display.phase("asking the plugins")
    negotiated = negotiate(request, workload)
    rule = question.rule
    config = _config(question.record, negotiated.config, rule)
    only = OnePart(parameter=question.parameter, passes=PASSES[rule])
    with tempfile.TemporaryDirectory(prefix="llmb-") as folder:
        directory = RunDirectory(Path(folder), clock.utc_now(), "only")
        scratch = Path(folder) / "scratch"
        scratch.mkdir()
        folders = Folders(directory.evidence_folder(0), scratch)
        line = RunPhases(workloads.of(config), negotiated, directory, display, progress=progress)
        try:
            seen = line.one_part(config, only, folders, _OF_STEPS if rule == "L1" else _SHORT)
            facts = replace(
                facts_of(question.record, (), {}),
                precision=config.precision,
                repeats=(seen.streamed.timing,),
            )
            bench = Bench(lambda name: _read(directory.path / name), facts, 0)
            tensors = _kept(scratch)
            found = _judged(question, bench, tensors, seen)
            about = {"rule": rule, "part": question.parameter, "use": "no part of any verdict"}
            try:
                arrays.write(tensors, output, about)
            except OSError as error:
                output.unlink(missing_ok=True)
                raise RunFailedError(f"cannot write {output}: {error.strerror}") from error
        except LlmbError as error:
            if isinstance(error, UsageError):
                raise
            log = output.with_suffix(".log")
            with suppress(OSError):
                log.write_bytes((directory.path / LOG).read_bytes())
            raise type(error)(f"{error} (see {log})") from error
        finally:
            directory.abandon("one part was looked at, nothing was timed")
    return replace(found, seconds=(clock.now_ns() - began_ns) / 1e9)


def _config(record: RunRecord, config: RunConfig, rule: str) -> RunConfig:
    """Return ``config`` with the weights and tokens of the record, and no timed window."""
    return config.model_copy(
        update={
            "seed": record.config.seed,
            "nonce": record.timing.repeats[0].nonce,
            "warmup_steps": 1,
            "timed_steps": 1,
            "repeats": 1,
            # P1 needs the limits of narrower formats: only a full audit measures the limits.
            "audit": AuditMode.FULL if rule == "P1" else AuditMode.QUICK,
        }
    )


def _read(path: Path) -> bytes | None:
    return path.read_bytes() if path.exists() else None


def _kept(scratch: Path) -> dict[str, FileArray]:
    """Return the tensors of the part from worker, honest run and reference.

    Only passes of the reference are kept. Example: with silent layers, the reference runs the probe
    ``head`` without the layers.
    """
    files = [scratch / name for name in (audited.PART, audited.PART_HONEST, audited.PART_REFERENCE)]
    found = {name: one for path in files if path.exists() for name, one in stored(path).items()}
    right = {name.split("/")[1] for name in found if name.startswith(f"{audited.IS_RIGHT}/")}
    return {name: one for name, one in found.items() if name.split("/")[1] in right}


def _judged(
    question: Question, bench: Bench, tensors: Mapping[str, FileArray], seen: Repeat
) -> Repeated:
    """Return the judgement from the evidence of the repetition.

    Raises:
        RunFailedError: evidence of a process is missing, or the honest run here is implausible.
        UsageError: the rule has no finding for the single part.
    """
    rule, parameter = question.rule, question.parameter
    failures = seen.examined.failures
    if seen.streamed.failure is not None or failures or not tensors:
        raise RunFailedError(
            f"{rule} was not repeated: {'; '.join(failures) or 'nothing was left'}"
        )
    try:
        every = parts(rule, bench)
        where = bench.read(_SEEN)
        probed = bench.read(PROBED)
    except UnreadableError as error:
        raise RunFailedError(f"{rule} was not repeated: {error}") from None
    assert where is not None
    if probed is not None and probed.failure is not None:
        raise RunFailedError(f"{rule} was not repeated: {probed.failure}")
    # In narrow formats L1 judges a stored parameter as a whole (llmb.audit.canonical_rows).
    names = [parameter, where.stored] if rule == "L1" else [parameter]
    mine = next((one for name in names if (one := _of(every, name))), None)
    if mine is None:
        raise UsageError(
            f"--only {rule} --part {parameter}: the rule says nothing of it by itself (its sample "
            f"is too small, or it is stored in a form of the plugin's own); it does of "
            f"{', '.join(one.part for one in every[:_NEAREST])}"
        )
    broken = tuple(one.part for one in every if not one.kept)
    name_of_pass = _pass_of(mine, rule)
    bits = {what: found for what in _WHATS if (found := _bits(tensors, name_of_pass, what))}
    why = where.why
    if why is None and audited.OUTPUT not in bits:
        why = f"module {where.module} takes or gives tensors of another shape than the reference's"
    return Repeated(
        rule=rule,
        parameter=parameter,
        finding=mine,
        recorded=_of(question.recorded(), mine.part),
        broken=broken,
        judged=len(every),
        pass_name=name_of_pass,
        bits=bits,
        why=why,
        seconds=0.0,
    )


def _of(every: Sequence[PartFinding], name: str | None) -> PartFinding | None:
    return next((one for one in every if one.part == name), None)


def _pass_of(finding: PartFinding, rule: str) -> str:
    """Return the pass of the finding. Example: ``head`` for "... in probe head"."""
    named = [name for name in PASSES[rule] if finding.what.endswith(f" in probe {name}")]
    return named[0] if named else PASSES[rule][0]


def compared(
    tensors: Mapping[str, FileArray], name: str, what: str, most: int
) -> tuple[Array, Array, Array] | None:
    """Return measured, honest and reference elements of a tensor in pass ``name``.

    At most ``most`` elements each. None if a tensor is missing, or sizes differ.
    """
    found = [tensors.get(f"{who}/{name}/{what}") for who in audited.WHO]
    three = [one for one in found if one is not None]
    if len(three) < len(found) or len({one.elements for one in three}) > 1:
        return None
    measured, honest, right = (one.sample(most) for one in three)
    return measured, honest, right


def _bits(tensors: Mapping[str, FileArray], name: str, what: str) -> tuple[float, float] | None:
    three = compared(tensors, name, what, _MOST)
    if three is None:
        return None
    measured, honest, right = three
    return gap(measured, right).bits, gap(honest, right).bits
