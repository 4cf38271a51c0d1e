"""Rule O1: torch's own optimizer steps every parameter, with the workload's constants."""

from __future__ import annotations

from collections.abc import Iterator

from llmb.audit.bench import OPTIMIZER, Bench
from llmb.audit.rule import TRAINING, Rule
from llmb.records.evidence import OptimizerEvidence
from llmb.records.finding import Finding, Level, Status
from llmb.reference.recipe import Optimizer

_CLASSES = {"AdamW": "torch.optim.adamw.AdamW", "SGD": "torch.optim.sgd.SGD"}
_CONSTANTS = {"AdamW": ("lr", "betas", "eps", "weight_decay"), "SGD": ("lr", "weight_decay")}
#: Skipped steps in FP16 under autocast: each halves the loss scale, from 2^16 on. Debug runs have 1
#: or 2; the eighth needs a gradient above 128. A plugin can let gradients overflow on purpose.
_MOST_SKIPPED = 8

O1 = Rule(
    "O1",
    Level.BLOCK,
    "the optimizer is torch.optim.AdamW as the harness built it",
    measured="class, `step`, groups, hooks and step counters after the last step",
    limit="every parameter once, with the workload's constants",
    cannot_see="native code inside `step`: O2 replays the step; in FP16 under autocast up to "
    "8 steps whose gradients overflow on purpose (one, if L1 repeats the steps)",
    evidence=(OPTIMIZER,),
    modes=TRAINING,
    causes=(
        "a fused or distributed optimizer wrapped around torch.optim.AdamW, or a hook added by a "
        "library",
        "post-processing that makes new parameters after the optimizer has them, or freezes some",
    ),
)
RULES = (O1,)


def judge(bench: Bench) -> Iterator[Finding]:
    """Yield O1."""
    seen, path = bench.needed(OPTIMIZER), bench.path(OPTIMIZER)
    fmt, done = bench.facts.precision, len(bench.timing.commitments)
    constants = bench.constants_of(max(0, done - 1))  # constants of the last completed step
    yield finding(seen, constants, path, scaled=fmt.scales_loss)


def finding(
    evidence: OptimizerEvidence, constants: Optimizer, path: str, *, scaled: bool = False
) -> Finding:
    """Return O1 for one worker's evidence file ``path``.

    ``constants`` are the workload's, such as ``lr`` and ``betas``. ``scaled``: gradients are
    scaled, and steps with overflowing gradients are skipped.
    """
    kind = _CLASSES[constants.name]
    faults = _identity(evidence, kind) + _coverage(evidence) + _constants(evidence, constants)
    counts = constants.moments > 0  # without moments torch keeps no counter
    faults += _steps(evidence) if counts else []
    if evidence.skipped and not scaled:
        faults.append(f"{evidence.skipped} steps were left out, and no gradient is scaled")
    if evidence.skipped > _MOST_SKIPPED:
        faults.append(f"{evidence.skipped} steps were left out, {_MOST_SKIPPED} at most may be")
    steps = f", {_range(evidence)} steps" if counts else ""
    if evidence.skipped:
        steps += f", {evidence.skipped} left out (gradients overflowed)"
    measured = f"{evidence.class_name}, {evidence.trainable} parameters{steps}"
    return O1.finding(
        Status.FAIL if faults else Status.PASS,
        "; ".join(faults) if faults else f"torch's own {constants.name} stepped every parameter",
        measured=measured,
        honest=f"{kind}, every parameter once, {evidence.steps_expected} steps",
        evidence=(path,),
    )


def _identity(e: OptimizerEvidence, kind: str) -> list[str]:
    faults = []
    if not e.class_is_torchs or e.class_name != kind:
        faults.append(f"the optimizer is a {e.class_name}, not {kind}")
    if not e.step_is_torchs:
        faults.append(f"{kind.rpartition('.')[2]}.step was replaced on the class")
    if e.instance_overrides:
        faults.append(f"replaced on the instance: {', '.join(e.instance_overrides)}")
    if e.step_hooks:
        faults.append(f"{e.step_hooks} step hooks are registered")
    return faults


def _coverage(e: OptimizerEvidence) -> list[str]:
    faults = []
    if not e.trainable:
        faults.append("the model has no trainable parameter")
    if e.missing:
        faults.append(f"{len(e.missing)} trainable parameters are not stepped: {e.missing[0]}, ...")
    if e.repeated:
        faults.append(f"{len(e.repeated)} parameters are stepped twice: {e.repeated[0]}, ...")
    return faults


def _constants(e: OptimizerEvidence, constants: Optimizer) -> list[str]:
    faults = []
    for group in e.groups:
        for name in _CONSTANTS[constants.name]:
            value, expected = getattr(group, name), getattr(constants, name)
            if value != expected:
                faults.append(f"{name} is {value}, not {expected}")
        if group.amsgrad or group.maximize:
            faults.append("amsgrad or maximize is on")
        if group.momentum or group.dampening or group.nesterov:
            faults.append("momentum, dampening or nesterov is on")
    return faults


def _steps(e: OptimizerEvidence) -> list[str]:
    if e.steps_min == e.steps_max == e.steps_expected:
        return []
    return [f"step counters read {_range(e)} after {e.steps_expected} steps of the loop"]


def _range(e: OptimizerEvidence) -> str:
    return f"{e.steps_min}" if e.steps_min == e.steps_max else f"{e.steps_min} to {e.steps_max}"
