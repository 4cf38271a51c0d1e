"""Rule O1: the optimizer is torch's AdamW, over every parameter, with the fixed constants."""

from __future__ import annotations

from llmb.records.evidence import OptimizerEvidence
from llmb.records.finding import Finding, Level, Status
from llmb.reference.recipe import Optimizer

_CLASS = "torch.optim.adamw.AdamW"


def judge(evidence: OptimizerEvidence, constants: Optimizer, path: str) -> Finding:
    """Return the finding of O1 for one worker's evidence file ``path``.

    ``constants`` are those the workload is trained with.
    """
    faults = _identity(evidence) + _coverage(evidence) + _constants(evidence, constants)
    faults += _steps(evidence)
    measured = f"{evidence.class_name}, {evidence.trainable} parameters, {_range(evidence)} steps"
    return Finding(
        id="O1",
        level=Level.BLOCK,
        status=Status.FAIL if faults else Status.PASS,
        observer="worker",
        measured=measured,
        honest=f"{_CLASS}, every parameter once, {evidence.steps_expected} steps",
        basis="fixed",
        message="; ".join(faults) if faults else "torch's own AdamW stepped every parameter",
        evidence=(path,),
    )


def _identity(e: OptimizerEvidence) -> list[str]:
    faults = []
    if not e.class_is_torchs or e.class_name != _CLASS:
        faults.append(f"the optimizer is a {e.class_name}, not {_CLASS}")
    if not e.step_is_torchs:
        faults.append("AdamW.step was replaced on the class")
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
        for name in ("lr", "betas", "eps", "weight_decay"):
            value, expected = getattr(group, name), getattr(constants, name)
            if value != expected:
                faults.append(f"{name} is {value}, not {expected}")
        if group.amsgrad or group.maximize:
            faults.append("amsgrad or maximize is on")
    return faults


def _steps(e: OptimizerEvidence) -> list[str]:
    if e.steps_min == e.steps_max == e.steps_expected:
        return []
    return [f"step counters read {_range(e)} after {e.steps_expected} steps of the loop"]


def _range(e: OptimizerEvidence) -> str:
    return f"{e.steps_min}" if e.steps_min == e.steps_max else f"{e.steps_min} to {e.steps_max}"
