"""One judgement of a recorded run made again, of one part of its model, on this machine.

It is the way out of an accused vendor: seconds instead of a run, and the numbers themselves. The
worker knows which part is looked at, so what comes of it is no part of any bundle or verdict.
"""

from __future__ import annotations

import difflib
import math
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from llmb import workloads
from llmb.audit.bench import PROBED, Bench, Files, UnreadableError, facts_of
from llmb.audit.distance import gap
from llmb.audit.one_part import PASSES, parts
from llmb.audit.rule import Evidence, PartFinding
from llmb.config import AuditMode, Mode, RunConfig, RunRequest
from llmb.errors import LlmbError, RunFailedError, UsageError
from llmb.families import family_of
from llmb.formats import UNKNOWN
from llmb.measure import clock
from llmb.records import arrays, audited
from llmb.records.arrays import Array, FileArray, stored
from llmb.records.audited import OnePart, PartSeen
from llmb.records.run_directory import LOG, RunDirectory
from llmb.records.run_record import RunRecord
from llmb.supervision.assembly import Repeat
from llmb.supervision.auditing import Folders
from llmb.supervision.choices import check_installed
from llmb.supervision.negotiation import negotiate
from llmb.supervision.run_phases import Display, RunPhases
from llmb.supervision.stream import Window

_SEEN = Evidence(audited.PART_SEEN, PartSeen.model_validate_json)
#: Two steps change the weights before the last, so that a copy of them that is not refreshed shows.
_SHORT = Window(first_fence=1, start=1, stop=2, end=2, every_step=True)
#: Rule L1 compares steps: the first has what the replay of the optimizer needs.
_OF_STEPS = Window(first_fence=1, start=1, stop=2, end=4, audits=(0,), every_step=True)
_WHATS = (audited.INPUT, audited.OUTPUT, audited.GRADIENT)
#: Elements of each tensor from which its bits are computed, equally far apart.
_MOST = 2**18
_NEAREST = 3


@dataclass(frozen=True)
class Repeated:
    """One judgement made again."""

    rule: str
    parameter: str
    finding: PartFinding
    #: What the run's own evidence says of the same part; None where it says nothing.
    recorded: PartFinding | None
    #: Parts that break the rule here, of all parts that were judged.
    broken: tuple[str, ...]
    judged: int
    #: The pass that input, output and gradient are of.
    pass_name: str
    #: Bits of each (-log2 of the error, relative to the reference), measured and honest.
    bits: Mapping[str, tuple[float, float]]
    #: Why there is neither input nor output, None where there are.
    why: str | None
    seconds: float

    @property
    def came_in_wrong(self) -> bool:
        """Tell whether the input of the module has a bit less than an honest run's."""
        measured, honest = self.bits.get(audited.INPUT, (0.0, 0.0))
        return measured < honest - 1


@dataclass(frozen=True)
class Question:
    """What is judged again: one part of a recorded run, by one rule."""

    record: RunRecord
    #: The run's own files, by their path in the run directory.
    files: Files
    rule: str
    parameter: str

    def recorded(self) -> tuple[PartFinding, ...]:
        """Return what the evidence of the run says of its parts."""
        return recorded(self.record, self.files, self.rule)


def check(record: RunRecord, rule: str) -> None:
    """Refuse what cannot be repeated.

    Raises:
        UsageError: the rule is about the run as a whole, nothing is trained, or ranks share it.
    """
    if rule not in PASSES:
        raise UsageError(
            f"--only {rule}: this rule looks at a whole run; one part can be judged again by "
            f"{', '.join(PASSES)}"
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
    why = Bench(_nothing, facts_of(record, (), {}), 0).why_no_ledger
    if rule == "L1" and why is not None:
        raise UsageError(f"--only L1: no step can be replayed: {why}; E1 looks at a single step")


def _nothing(_: str) -> None:
    """Return that there is no such file."""


def recorded(record: RunRecord, files: Files, rule: str) -> tuple[PartFinding, ...]:
    """Return what the evidence of the run says of its parts, the worst repeat's; may be nothing."""
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
    """Return the parameter that ``wanted`` names: in full, without ``.weight`` or what is before.

    Example: ``layers.3.mlp.up_proj`` is ``model.layers.3.mlp.up_proj.weight``.

    Raises:
        UsageError: no parameter has that name; the line has the nearest ones.
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
    """Return the worst of the recorded parts, by its canonical name.

    Raises:
        UsageError: there is none.
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
    """Judge the part of ``question`` once more, and leave its tensors in ``output``.

    Raises:
        LlmbError: it cannot be done here, or a process failed; its log is left beside ``output``.
    """
    began_ns = clock.now_ns()
    check_installed(request.executor)
    display.phase("asking the plugins")
    negotiated = negotiate(request, workloads.of(request))
    rule = question.rule
    config = _config(question.record, negotiated.config, rule)
    only = OnePart(parameter=question.parameter, passes=PASSES[rule])
    with tempfile.TemporaryDirectory(prefix="llmb-") as folder:
        directory = RunDirectory(Path(folder), clock.utc_now(), "only")
        scratch = Path(folder) / "scratch"
        scratch.mkdir()
        folders = Folders(directory.evidence_folder(0), scratch)
        line = RunPhases(workloads.of(config), negotiated, directory, display)
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
            # The borders of narrower formats tell which of them a part reaches.
            "audit": AuditMode.FULL if rule == "P1" else AuditMode.QUICK,
        }
    )


def _read(path: Path) -> bytes | None:
    return path.read_bytes() if path.exists() else None


def _kept(scratch: Path) -> dict[str, FileArray]:
    """Return what worker, honest run and reference have kept of the part.

    Of passes that the reference has: with silent layers it makes the probe ``head`` without them.
    """
    files = [scratch / name for name in (audited.PART, audited.PART_HONEST, audited.PART_REFERENCE)]
    found = {name: one for path in files if path.exists() for name, one in stored(path).items()}
    right = {name.split("/")[1] for name in found if name.startswith(f"{audited.IS_RIGHT}/")}
    return {name: one for name, one in found.items() if name.split("/")[1] in right}


def _judged(
    question: Question, bench: Bench, tensors: Mapping[str, FileArray], seen: Repeat
) -> Repeated:
    """Return the judgement from the evidence of a repetition.

    Raises:
        RunFailedError: a process has not left what is needed, or nothing is honest here.
        UsageError: the rule says nothing of this part by itself.
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
    name = where.stored if rule == "L1" else parameter
    mine = _of(every, name)
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
        recorded=_of(question.recorded(), name),
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
    """Return the pass that the part was judged by."""
    named = [name for name in PASSES[rule] if finding.what.endswith(f" in probe {name}")]
    return named[0] if named else PASSES[rule][0]


def compared(
    tensors: Mapping[str, FileArray], name: str, what: str, most: int
) -> tuple[Array, Array, Array] | None:
    """Return measured, honest and right elements of ``what`` in pass ``name``, at most ``most``.

    None where one of them is missing, or the plugin's has another shape.
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
