"""A whole run judged: every rule, from evidence files and the values of its record.

The supervisor judges a run with this, and whoever verifies a bundle judges it again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from pydantic import ValidationError

from llmb.audit import (
    equivalence,
    loss,
    namespace,
    optimizer,
    outputs,
    pace,
    physics,
    precision,
    replay,
    rules,
    settings,
    sources,
    surroundings,
    time,
    types,
)
from llmb.audit import weights as rule_w1
from llmb.audit.distance import gaps
from llmb.config import Frozen, Mode, Precision
from llmb.records import arrays, audited, evidence
from llmb.records.arrays import Arrays
from llmb.records.ceiling import Ceilings
from llmb.records.finding import Audit, Finding, Level, Status
from llmb.records.run_record import (
    DeclaredPatch,
    FileDigest,
    PrecisionBits,
    RepeatTiming,
    WorkloadFacts,
)
from llmb.records.system import SystemDescription

E = TypeVar("E", bound=Frozen)
#: Gives an evidence file by its path in the run directory; None where there is none.
Files = Callable[[str], bytes | None]


#: Bits to which a device's reference must agree with the verifier's, where both were computed.
_DEVICE_BITS = 12.0


class UnreadableError(Exception):
    """An evidence file is there and is not what llmb writes."""


@dataclass(frozen=True)
class Facts:
    """What is judged besides evidence files."""

    precision: Precision
    repeats: Sequence[RepeatTiming]
    #: The plugin's files as shown.
    shown: Sequence[FileDigest]
    #: The reference's files on disk and as pinned: name -> sha256.
    reference: Mapping[str, str]
    pinned: Mapping[str, str]
    workload: WorkloadFacts
    world_size: int
    ceilings: Ceilings | None
    #: The datasheet's dense peak of one device in FLOP/s, None where the plugin states none.
    peak_flops: float | None
    system: SystemDescription
    #: What the plugin says it replaces, and names of the variables it asked for.
    patches: Sequence[DeclaredPatch]
    variables: Sequence[str]
    is_debug: bool


@dataclass(frozen=True)
class Judgement:
    """The audit, and the precision that was measured (None where it was not)."""

    audit: Audit
    effective: str | None
    bits: PrecisionBits
    precision_observed: bool


def judge(files: Files, facts: Facts) -> Judgement:
    """Return what the evidence of a run and its record add up to.

    Raises:
        UnreadableError: an evidence file is not what llmb writes.
    """
    benches = [_Bench(files, facts, n) for n in range(len(facts.repeats))]
    try:
        per_repeat = [list(bench.findings()) for bench in benches]
    except (KeyError, IndexError, ValueError, ArithmeticError) as error:
        raise UnreadableError(
            f"evidence does not hold what it must ({type(error).__name__}: {error})"
        ) from error
    found = [*_worst_of(per_repeat), time.judge_clocks(facts.repeats)]
    found.append(time.judge_schedule(facts.repeats, facts.workload.mode))
    found += pace.judge(facts.repeats, facts.system)
    found.append(pace.judge_stationarity(facts.repeats, facts.system))
    found.append(_physics(facts))
    if facts.workload.mode == Mode.TRAIN.value:
        found.append(loss.judge(facts.repeats, facts.workload))
    measured = [m for bench in benches if (m := bench.measured()) is not None]
    lowest = _lowest(measured)
    complete = len(measured) == len(benches)
    return Judgement(
        audit=rules.complete(found, facts.workload.mode),
        effective=lowest.effective if complete and lowest else None,
        bits=lowest.bits if lowest else PrecisionBits(),
        precision_observed=complete and lowest is not None,
    )


def _physics(facts: Facts) -> Finding:
    """Return K1; a debug run in a format that is only emulated has nothing to be held to."""
    if facts.precision.is_slow and facts.ceilings is None and facts.is_debug:
        return Finding(
            id="K1",
            level=Level.BLOCK,
            status=Status.NOT_APPLICABLE,
            observer="none",
            message=f"the device only emulates {facts.precision.name}: no ceiling of a debug run",
        )
    return physics.judge(
        facts.repeats,
        facts.workload,
        facts.world_size,
        facts.ceilings,
        facts.peak_flops,
        facts.system,
        facts.precision.computing.bits,
    )


def _drawn() -> Finding:
    """Return G1 of a model with dropout."""
    return Finding(
        id="G1",
        level=Level.BLOCK,
        status=Status.NOT_APPLICABLE,
        observer="none",
        message="dropout draws each step's gradients: E1 and E2 look at a pass without dropout",
    )


def _worst_of(per_repeat: Sequence[Sequence[Finding]]) -> Iterator[Finding]:
    """Yield the worst finding of each rule; none where a repeat lacks it, unless another failed."""
    keys = dict.fromkeys((f.id, f.level) for findings in per_repeat for f in findings)
    for key in keys:
        found = [[f for f in findings if (f.id, f.level) == key] for findings in per_repeat]
        worst = rules.worst([f for findings in found for f in findings])
        if all(found) or worst.status is Status.FAIL:
            yield worst


def _lowest(measured: Sequence[precision.Measured]) -> precision.Measured | None:
    """Return the measurement with the fewest bits."""
    return min(
        measured, key=lambda m: min(m.bits.forward_min or 0, m.bits.gradient_min or 0), default=None
    )


class _Bench:
    """The evidence of one repeat."""

    def __init__(self, files: Files, facts: Facts, repeat: int) -> None:
        self._files, self._facts, self._repeat = files, facts, repeat
        self._probes: precision.Probes | outputs.Outputs | None = None
        self._trains = facts.workload.mode == Mode.TRAIN.value

    def findings(self) -> Iterator[Finding]:
        """Yield a finding for every rule whose evidence is there."""
        yield from self._weights()
        if self._trains:
            yield from self._passes()
            yield from self._steps()
            yield from self._optimizer()
        else:
            yield from self._outputs()
        yield from self._program()
        yield from self._process()
        loaded = self._read(evidence.PLUGIN, evidence.PluginEvidence)
        if loaded is not None:
            facts = self._facts
            yield sources.judge(loaded, facts.shown, facts.reference, facts.pinned)

    def measured(self) -> precision.Measured | None:
        """Return the effective precision, None where it was not measured."""
        return self._probes.measured() if self._probes else None

    def _weights(self) -> Iterator[Finding]:
        weights = self._read(evidence.WEIGHTS, evidence.WeightsEvidence)
        pristine = self._read(audited.PRISTINE, audited.PristineEvidence)
        if weights is not None:
            path, probed = self._path(evidence.WEIGHTS), self._read_probed()
            steps = probed.last_step if probed and self._trains else 0
            constants = self._facts.workload.optimizer
            yield rule_w1.judge(weights, pristine, self._facts.precision, constants, steps, path)

    def _reference(self) -> Arrays | None:
        """Return what is right: by the verifier, and by the device where that agrees with it."""
        by_host = self._arrays(audited.REFERENCE)
        by_device = self._arrays(audited.DEVICE_REFERENCE)
        if by_host is None or by_device is None:
            return by_host
        probed = gaps(by_device, by_host, "branches/").items()
        doubt = [one.bits for name, one in probed if not name.startswith("out/")]
        if not doubt or min(doubt) < _DEVICE_BITS:
            return by_host
        return {**by_device, **by_host}

    def _passes(self) -> Iterator[Finding]:
        probed = self._read_probed()
        seen, honest = self._arrays(audited.GRADIENTS), self._arrays(audited.HONEST)
        reference = self._reference()
        if probed is None or seen is None or honest is None or reference is None:
            return
        self._check_whole(reference)
        names = (audited.GRADIENTS, audited.HONEST, audited.REFERENCE)
        paths = tuple(map(self._path, names))
        fmt = self._facts.precision
        if not set(precision.PROBES) <= set(probed.passes):
            return
        probes = precision.Probes(seen, honest, reference, fmt, paths)
        yield probes.live()
        honest_run = equivalence.is_plausible(honest, reference, fmt)
        if not (honest_run and probes.honest_is_honest()):
            yield probes.effective()
            yield from probes.without_yardstick("E1", "E2", "G1")
            return
        self._probes = probes
        steps = self._arrays(audited.STEP_VALUES)
        if "live/loss" in reference and steps is not None:
            yield equivalence.judge_live(probed, steps, seen, honest, reference, fmt, paths)
        yield probes.branches()
        yield probes.effective()

    def _outputs(self) -> Iterator[Finding]:
        """Yield what there is to say of the logits, where nothing is trained."""
        probed, looked = self._read_probed(), self._read(audited.STEPS, audited.StepsEvidence)
        seen, steps = self._arrays(audited.GRADIENTS), self._arrays(audited.STEP_VALUES)
        honest, by_host = self._arrays(audited.HONEST), self._arrays(audited.REFERENCE)
        if probed is None or looked is None or seen is None or steps is None:
            return
        if honest is None or by_host is None:
            return
        # What is too much work for the host was computed on the device.
        reference = {**(self._arrays(audited.DEVICE_REFERENCE) or {}), **by_host}
        kept = next((step for step in looked.steps if step.weights_kept), None)
        timing = self._facts.repeats[self._repeat]
        if kept is not None and not _inside(kept.index, timing):
            kept = None
        names = (audited.GRADIENTS, audited.STEP_VALUES, audited.HONEST, audited.REFERENCE)
        shown = outputs.Shown(probed, kept, seen, steps, honest, reference)
        judged = outputs.Outputs(shown, self._facts.precision, tuple(map(self._path, names)))
        self._probes = judged
        yield from judged.findings()

    def _check_whole(self, reference: Arrays) -> None:
        """Hold the reference of each pass that has one to all parameters.

        Raises:
            ValueError: there are some that nothing would be compared with.
        """
        pristine = self._read(audited.PRISTINE, audited.PristineEvidence)
        for name in ("live", "branches"):
            if pristine is None or f"{name}/loss" not in reference:
                continue
            for parameter in pristine.parameters:
                if f"{name}/{parameter.name}" not in reference:
                    raise ValueError(f"the reference has no {name}/{parameter.name}")

    def _steps(self) -> Iterator[Finding]:
        steps = self._read(audited.STEPS, audited.StepsEvidence)
        seen, replayed = self._arrays(audited.STEP_VALUES), self._arrays(audited.REPLAY)
        if steps is None or seen is None or replayed is None:
            return
        if len({step.index for step in steps.steps}) < len(steps.steps):
            raise ValueError("a step was audited twice")
        path = self._path(audited.STEP_VALUES)
        workload = self._facts.workload
        constants, clip = workload.optimizer, workload.clip_grad_norm
        stepped = self._read(evidence.OPTIMIZER, evidence.OptimizerEvidence)
        skipped = stepped.skipped if stepped is not None else 0
        yield replay.judge(steps, seen, replayed, constants, path, clip, skipped=skipped)
        if self._facts.workload.shapes.get("dropout"):
            yield _drawn()
            return
        honest, reference = self._arrays(audited.HONEST), self._reference()
        kept = next((step for step in steps.steps if step.weights_kept), None)
        timing = self._facts.repeats[self._repeat]
        if kept is None or honest is None or reference is None or "step" not in reference:
            return
        if self._probes is None or not _inside(kept.index, timing):
            return
        cost = _cost(steps, timing)
        paths = (path, self._path(audited.HONEST), self._path(audited.REFERENCE))
        fmt = self._facts.precision
        weights = self._read(evidence.WEIGHTS, evidence.WeightsEvidence)
        padding = weights.padding if weights is not None else ()
        looked_at = [step.index for step in steps.steps]
        yield equivalence.judge_step(
            kept, seen, honest, reference, fmt, cost, padding, looked_at, paths
        )

    def _process(self) -> Iterator[Finding]:
        """Yield N1 of worker and calibrator, N2 and P3."""
        baseline = self._read(evidence.LIBRARY, evidence.LibraryBaseline)
        library = self._path(evidence.LIBRARY) if baseline is not None else None
        names = [
            (name, seen)
            for name in (evidence.NAMESPACE, audited.HONEST_NAMESPACE)
            if (seen := self._read(name, evidence.NamespaceEvidence)) is not None
        ]
        patches = self._facts.patches
        for name, seen in names:
            found = namespace.judge(seen, baseline, patches, self._path(name), library)
            if len(names) > 1 or found.status is Status.FAIL:  # one process alone can only convict
                yield found
        around = self._read(evidence.SURROUNDINGS, evidence.SurroundingsEvidence)
        if around is not None:
            path = self._path(evidence.SURROUNDINGS)
            yield surroundings.judge(around, self._facts.variables, path)
        switches = self._read(evidence.SETTINGS, evidence.SettingsEvidence)
        sums = self._read(evidence.LITMUS, evidence.LitmusEvidence)
        if switches is not None:
            where = self._path(evidence.LITMUS) if sums is not None else None
            yield settings.judge(switches, sums, self._path(evidence.SETTINGS), where)

    def _optimizer(self) -> Iterator[Finding]:
        seen = self._read(evidence.OPTIMIZER, evidence.OptimizerEvidence)
        if seen is not None:
            constants, fmt = self._facts.workload.optimizer, self._facts.precision
            scaled = fmt.master_weights and fmt.dtype == "float16"
            yield optimizer.judge(seen, constants, self._path(evidence.OPTIMIZER), scaled=scaled)

    def _program(self) -> Iterator[Finding]:
        data, fmt = self._files(self._path(evidence.PROGRAM)), self._facts.precision
        if data is not None:
            yield types.judge(data.decode(errors="replace"), fmt, self._path(evidence.PROGRAM))
            return
        seen = self._read(evidence.TYPES, evidence.TypesEvidence)
        if seen is not None:
            yield types.judge_census(seen, fmt, self._path(evidence.TYPES))

    def _read_probed(self) -> audited.ProbedEvidence | None:
        return self._read(audited.PROBED, audited.ProbedEvidence)

    def _path(self, name: str) -> str:
        return evidence.path(self._repeat, name)

    def _read(self, name: str, kind: type[E]) -> E | None:
        data = self._files(self._path(name))
        if data is None:
            return None
        try:
            return kind.model_validate_json(data)
        except ValidationError as error:
            raise UnreadableError(f"{self._path(name)} is not readable: {_first(error)}") from error

    def _arrays(self, name: str) -> Arrays | None:
        data = self._files(self._path(name))
        if data is None:
            return None
        try:
            return arrays.read(data)
        except ValueError as error:
            raise UnreadableError(f"{self._path(name)}: {error}") from error


def _first(error: ValidationError) -> str:
    """Return the first of many faults: a stranger may make a million of them."""
    first = error.errors(include_input=False, include_url=False, include_context=False)[0]
    return f"{'.'.join(map(repr, first['loc']))[:100]} {first['msg']}"[:300]


def _inside(step: int, timing: RepeatTiming) -> bool:
    return timing.warmup_steps <= step < timing.warmup_steps + timing.timed_steps


def _cost(steps: audited.StepsEvidence, timing: RepeatTiming) -> str:
    share = steps.pause_ns / max(1, timing.stop_ns - timing.start_ns)
    return f"all pauses took {share:.2%} of the window's length"
