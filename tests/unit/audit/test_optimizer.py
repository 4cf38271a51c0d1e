"""Rule O1: each way to be another optimizer fails, and says which."""

from __future__ import annotations

import pytest

from llmb.audit import optimizer
from llmb.records.evidence import OptimizerEvidence
from llmb.records.finding import Finding, Level, Status
from llmb.reference.recipe import OFFICIAL_OPTIMIZER, Optimizer
from tests.builders import optimizer_evidence, repeat_timing

HONEST = optimizer_evidence(repeat_timing())
STEPS = HONEST.steps_expected


def with_group(**changes: object) -> OptimizerEvidence:
    group = HONEST.groups[0].model_copy(update=changes)
    return HONEST.model_copy(update={"groups": (*HONEST.groups, group)})


def changed(**changes: object) -> OptimizerEvidence:
    return HONEST.model_copy(update=changes)


def judge(evidence: OptimizerEvidence, path: str = "x") -> Finding:
    return optimizer.finding(evidence, OFFICIAL_OPTIMIZER, path)


def test_the_constants_expected_are_those_of_the_workload() -> None:
    other = Optimizer(lr=1e-3, eps=1e-8)
    found = optimizer.finding(HONEST, other, "x")
    assert found.status is Status.FAIL
    assert "lr is 1e-05, not 0.001; eps is 1e-06, not 1e-08" in found.message


def test_an_honest_optimizer_passes_and_points_to_its_evidence() -> None:
    found = judge(HONEST, "evidence/repeat-0/optimizer.json")
    assert (found.id, found.level, found.status) == ("O1", Level.BLOCK, Status.PASS)
    assert found.evidence == ("evidence/repeat-0/optimizer.json",)
    assert found.measured == f"torch.optim.adamw.AdamW, 111 parameters, {STEPS} steps"


@pytest.mark.parametrize("switch", ["foreach", "fused", "capturable"])
@pytest.mark.parametrize("value", [True, False])
def test_the_choice_of_kernel_is_free(switch: str, value: bool) -> None:
    assert judge(with_group(**{switch: value}), "x").status is Status.PASS


@pytest.mark.parametrize(
    ("evidence", "words"),
    [
        (changed(class_name="fast.Adam"), "the optimizer is a fast.Adam, not torch.optim"),
        (changed(class_is_torchs=False), "the optimizer is a"),
        (changed(step_is_torchs=False), "AdamW.step was replaced on the class"),
        (changed(instance_overrides=("step", "x")), "replaced on the instance: step, x"),
        (changed(step_hooks=2), "2 step hooks are registered"),
        (changed(trainable=0), "no trainable parameter"),
        (changed(missing=("a", "b")), "2 trainable parameters are not stepped: a"),
        (changed(repeated=("c",)), "1 parameters are stepped twice: c"),
        (with_group(lr=1e-4), "lr is 0.0001, not 1e-05"),
        (with_group(betas=(0.9, 0.99)), "betas is (0.9, 0.99), not (0.9, 0.999)"),
        (with_group(eps=1e-8), "eps is 1e-08, not 1e-06"),
        (with_group(weight_decay=0.0), "weight_decay is 0.0, not 0.01"),
        (with_group(amsgrad=True), "amsgrad or maximize is on"),
        (with_group(maximize=True), "amsgrad or maximize is on"),
        (changed(steps_min=STEPS - 1), f"read {STEPS - 1} to {STEPS} after {STEPS} steps"),
        (changed(steps_max=STEPS + 1), f"read {STEPS} to {STEPS + 1} after {STEPS} steps"),
        (changed(steps_min=None), f"read None to {STEPS} after {STEPS}"),
        (changed(steps_min=None, steps_max=None), f"read None after {STEPS}"),
        (changed(steps_min=3, steps_max=3), f"step counters read 3 after {STEPS}"),
    ],
)
def test_each_fault_fails_the_rule_and_is_named(evidence: OptimizerEvidence, words: str) -> None:
    found = judge(evidence)
    assert found.status is Status.FAIL
    assert found.level is Level.BLOCK
    assert words in found.message


def test_every_fault_is_named_and_not_only_the_first() -> None:
    found = judge(changed(step_hooks=1, trainable=0, steps_max=0))
    assert found.message.count(";") == 2
