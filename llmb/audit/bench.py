"""Evidence files of one repeat, read on demand, and the facts of the run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeVar

from pydantic import ValidationError

from llmb.audit.distance import gaps
from llmb.audit.precision import Measured
from llmb.audit.rule import Evidence, Rule
from llmb.audit.sums import RoundedSums
from llmb.config import AuditMode, Mode, Parallelism, Precision, RunConfig, is_cpu
from llmb.inputs.start import starts_sharp
from llmb.records import arrays, audited, draws, evidence
from llmb.records.arrays import Arrays
from llmb.records.ceiling import Ceilings
from llmb.records.draws import Draws
from llmb.records.finding import JUDGED_SINCE, JUDGED_VERSIONS, RULES_VERSION
from llmb.records.run_record import (
    DeclaredHelper,
    DeclaredPatch,
    FileDigest,
    RepeatTiming,
    RunRecord,
    WorkloadFacts,
)
from llmb.records.system import SystemDescription
from llmb.reference.recipe import Optimizer

E = TypeVar("E")
#: Returns the bytes of an evidence file by its path in the run directory; None: no such file.
Files = Callable[[str], bytes | None]

#: Evidence files that several judges read.
WEIGHTS = Evidence(evidence.WEIGHTS, evidence.WeightsEvidence.model_validate_json)
OPTIMIZER = Evidence(evidence.OPTIMIZER, evidence.OptimizerEvidence.model_validate_json)
PRISTINE = Evidence(audited.PRISTINE, audited.PristineEvidence.model_validate_json)
PROBED = Evidence(audited.PROBED, audited.ProbedEvidence.model_validate_json)
STEPS = Evidence(audited.STEPS, audited.StepsEvidence.model_validate_json)
GRADIENTS = Evidence(audited.GRADIENTS, arrays.read)
STEP_VALUES = Evidence(audited.STEP_VALUES, arrays.read_reduced)
REPLAY = Evidence(audited.REPLAY, arrays.read_reduced)
HONEST = Evidence(audited.HONEST, arrays.read_reduced)
REFERENCE = Evidence(audited.REFERENCE, arrays.read_reduced)
LEDGER = Evidence(audited.LEDGER, audited.LedgerEvidence.model_validate_json)
VALUES = Evidence(audited.LEDGER_VALUES, arrays.read)
JUDGED = Evidence(audited.JUDGED, arrays.read)
DEVICE_REFERENCE = Evidence(audited.DEVICE_REFERENCE, arrays.read_reduced)

#: Bits to which the device's reference must agree with the host's reference.
_DEVICE_BITS = 12.0


class UnreadableError(Exception):
    """An evidence file exists but is not in the form llmb writes."""


@dataclass(frozen=True)
class Facts:
    """Values of the run record that judges use besides evidence files."""

    precision: Precision
    repeats: Sequence[RepeatTiming]
    #: Path and sha256 of each plugin file, as the bundle shows the files.
    shown: Sequence[FileDigest]
    #: Name -> sha256 of the reference's files: on disk, and as pinned.
    reference: Mapping[str, str]
    pinned: Mapping[str, str]
    workload: WorkloadFacts
    parallelism: Parallelism
    ceilings: Ceilings | None
    #: Dense peak of one device in FLOP/s, from the datasheet; None: the plugin states no peak.
    peak_flops: float | None
    system: SystemDescription
    #: Declared by the plugin: replaced functions, helper threads, requested environment variables.
    patches: Sequence[DeclaredPatch]
    helpers: Sequence[DeclaredHelper]
    variables: Sequence[str]
    is_debug: bool
    #: The device of the run is the host's processor.
    on_host: bool = False
    #: Number of gradients that an honest run adds up for a step, in the format of the weights.
    added_up: int = 1
    #: The device records a step, compiles the recording and runs the program later.
    records_steps: bool = False
    #: The run was asked to use the workload's own learning rate in every step.
    constant_rate: bool = False
    #: Every step was to be replayed (``--audit complete``).
    complete: bool = False
    #: The softmax was sharp from the first step. Always False by rules 2.
    sharp_start: bool = False
    #: Version of the rules in force when the run was made.
    rules_version: str = RULES_VERSION


def facts_of(record: RunRecord, shown: Sequence[FileDigest], reference: Mapping[str, str]) -> Facts:
    """Return the facts in ``record``, with the digests of plugin files in ``shown``.

    ``reference`` has the digests of the reference's files, which are assumed to be the run's own.
    """
    known = record.rules_version in JUDGED_VERSIONS
    return Facts(
        precision=record.config.precision,
        repeats=record.timing.repeats,
        shown=shown,
        reference=reference,
        pinned=reference,
        workload=record.workload,
        parallelism=record.config.parallelism,
        ceilings=record.ceilings,
        peak_flops=record.result.mfu.peak_flops if record.result.mfu else None,
        system=record.system,
        patches=record.plugin.declared_patches,
        helpers=record.plugin.declared_helpers,
        variables=record.plugin.environment,
        is_debug=record.class_ == "debug",
        on_host=is_cpu(record.config.device),
        added_up=record.config.added_up,
        records_steps=record.plugin.lacks.eager_kernels,
        constant_rate=record.config.constant_rate,
        complete=record.config.audit is AuditMode.COMPLETE,
        sharp_start=record.rules_version != "2" and sharp_of(record.config, record.workload),
        rules_version=record.rules_version if known else RULES_VERSION,
    )


def sharp_of(config: RunConfig, workload: WorkloadFacts) -> bool:
    """Tell whether the softmax of a run of ``config`` was sharp from the first step."""
    dropout = float(workload.shapes.get("dropout") or 0.0)
    return starts_sharp(config, workload.optimizer, workload.parameters, dropout)


@dataclass
class Bench:
    """Evidence of one repeat, and the facts of the run.

    Some rules are judged once a run. Such a judge gets the bench of repeat 0, and calls ``of`` for
    the other repeats.
    """

    _files: Files
    facts: Facts
    _repeat: int
    #: The effective precision, None where it was not measured: the judge of P1 sets it.
    measured: Measured | None = None
    _known: dict[str, Any] = field(default_factory=dict)

    @property
    def trains(self) -> bool:
        """Tell whether steps train. Other modes, such as generate, have no gradients."""
        return self.facts.workload.mode == Mode.TRAIN.value

    @property
    def timing(self) -> RepeatTiming:
        """Return the time stamps of this repeat."""
        return self.facts.repeats[self._repeat]

    def constants_of(self, step: int) -> Optimizer:
        """Return the optimizer's constants in ``step``, with the step's drawn learning rate."""
        usual, drawn = self.facts.workload.optimizer, self.drawn
        return usual if drawn is None else replace(usual, lr=drawn.rate(step))

    @property
    def drops(self) -> bool:
        """Tell whether steps have dropout."""
        return self.trains and bool(self.facts.workload.shapes.get("dropout"))

    @property
    def why_rough(self) -> str | None:
        """Reason why no step can be repeated exactly, so that L1 compares directions; else None."""
        return draws.why_rough(self.facts.precision, dropout=self.drops) if self.trains else None

    @property
    def sums(self) -> RoundedSums:
        """The additions of a gradient over the micro-batches of a step.

        By rules 3 and older honest runs added up in float32.
        """
        earlier = int(self.facts.rules_version) < JUDGED_SINCE
        return RoundedSums(1 if earlier else self.facts.added_up, self.facts.precision)

    @cached_property
    def why_no_ledger(self) -> str | None:
        """Reason why no step can be replayed (rule L1); None where all steps can."""
        facts = self.facts
        if self.why_rough is not None and int(facts.rules_version) < JUDGED_SINCE:
            return self.why_rough
        return draws.why_no_ledger(
            facts.workload.mode,
            facts.precision,
            mesh=facts.parallelism,
            state=draws.state_bytes(
                facts.workload.parameters, facts.precision, facts.workload.optimizer
            ),
        )

    @property
    def drawn(self) -> Draws | None:
        """Random draws of this repeat; None by rules 2 and older, when nothing was drawn."""
        if self.timing.nonce is None:
            return None
        return Draws(
            self.timing.nonce,
            self.facts.workload.optimizer,
            ledger=self.why_no_ledger is None and bool(self.timing.commitments),
            constant_rate=self.facts.constant_rate,
            rough=self.why_rough is not None,
            ranks=self.facts.parallelism.world_size,
            complete=self.facts.complete,
            stamp=self.timing.stamp,
        )

    @property
    def every_step(self) -> bool:
        """Tell whether rule L1 compares the gradients of every step, which makes G1 redundant."""
        drawn = self.drawn
        return (
            self.trains and drawn is not None and drawn.compares_all(len(self.timing.commitments))
        )

    def of(self, repeat: int) -> Bench:
        """Return the bench of another repeat of the same run."""
        return Bench(self._files, self.facts, repeat)

    def path(self, file: Evidence[Any]) -> str:
        """Return the path of ``file`` of this repeat in the run directory."""
        return evidence.path(self._repeat, file.name)

    def paths(self, *files: Evidence[Any]) -> tuple[str, ...]:
        """Return the path of each of ``files`` in the run directory."""
        return tuple(map(self.path, files))

    def read(self, file: Evidence[E]) -> E | None:
        """Return the parsed ``file``; None: this repeat has no such file.

        Raises:
            UnreadableError: the file is not in the form llmb writes.
        """
        if file.name not in self._known:
            self._known[file.name] = self._parsed(file)
        found: E | None = self._known[file.name]
        return found

    def whole_numbers(self, file: Evidence[Arrays]) -> Mapping[str, Sequence[int]]:
        """Return the int32 and int64 arrays of ``file``, which ``read`` leaves out.

        The mapping is empty if this repeat has no such file.

        Raises:
            ValueError: as ``arrays.read`` does; ``read`` has refused such a file already.
        """
        data = self._files(self.path(file))
        return {} if data is None else arrays.read_integers(data)

    def needed(self, file: Evidence[E]) -> E:
        """Return the parsed ``file``, without which the judge would not have been called."""
        found = self.read(file)
        assert found is not None, file.name
        return found

    def shows(self, rule: Rule) -> bool:
        """Tell whether the files needed by the judge of ``rule`` exist."""
        there = (self.read(file) is not None for file in rule.evidence)
        # Read all files: an unreadable file must not go unnoticed behind a missing file.
        return any(there) if rule.any_evidence else all([*there])

    def right(self, file: Evidence[Arrays]) -> Arrays | None:
        """Return the arrays of ``file``, a reference; None: no such file.

        Passes of a reference may be stored as differences from the worker's passes.

        Raises:
            UnreadableError: the worker's evidence lacks a pass from which a difference was stored.
        """
        found = self.read(file)
        if found is None:
            return None
        try:
            return arrays.resolved(found, self.read(GRADIENTS) or {})
        except ValueError as error:
            raise UnreadableError(f"{self.path(file)}: {error}") from error

    @cached_property
    def reference(self) -> Arrays | None:
        """Return the reference arrays: the host's, plus the device's where both agree."""
        by_host, by_device = self.right(REFERENCE), self.right(DEVICE_REFERENCE)
        if by_host is None or by_device is None:
            return by_host
        probed = gaps(by_device, by_host, "branches/").items()
        doubt = [one.bits for name, one in probed if not name.startswith("out/")]
        if not doubt or min(doubt) < _DEVICE_BITS:
            return by_host
        return {**by_device, **by_host}

    def _parsed(self, file: Evidence[E]) -> E | None:
        path = self.path(file)
        data = self._files(path)
        if data is None:
            return None
        try:
            return file.parse(data)
        except ValidationError as error:
            raise UnreadableError(f"{path} is not readable: {_first(error)}") from error
        except ValueError as error:
            raise UnreadableError(f"{path}: {error}") from error


def _first(error: ValidationError) -> str:
    """Return the first validation error: a hostile file may contain a million errors."""
    first = error.errors(include_input=False, include_url=False, include_context=False)[0]
    return f"{'.'.join(map(repr, first['loc']))[:100]} {first['msg']}"[:300]
