"""O1, O2 and W1 of a workload that is trained with SGD: no counters, no moments, no bound."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD, AdamW, Optimizer

from llmb.audit import optimizer as rule_o1
from llmb.audit import replay as rule_o2
from llmb.audit import weights as rule_w1
from llmb.config import BF16
from llmb.observe.optimizer import OptimizerBaseline
from llmb.observe.replay import can_replay, replay
from llmb.observe.step_sampler import StepSampler
from llmb.records.audited import PristineDigest, PristineEvidence, StepsEvidence
from llmb.records.evidence import ParameterDigest, WeightsEvidence
from llmb.records.finding import Finding, Status
from llmb.reference.optimizer import build_optimizer
from llmb.reference.recipe import OFFICIAL_OPTIMIZER
from llmb.reference.recipe import Optimizer as Constants
from llmb.reference.train_loop import Step

CONSTANTS = Constants("SGD", lr=6e-4, weight_decay=0.1)
DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def model_of(dtype: torch.dtype = torch.float32) -> nn.Module:
    generator = torch.Generator().manual_seed(1)
    model = nn.Module()
    for name, shape in (("w", (130, 70)), ("gain", (70,))):
        value = torch.randn(shape, generator=generator) * 0.5
        model.register_parameter(name, nn.Parameter(value.to(dtype)))
    return model


def set_gradients(model: nn.Module, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for p in model.parameters():
        p.grad = torch.randn(p.shape, generator=generator).to(p.dtype)


# -- O1 -------------------------------------------------------------------------------------------


def first_rule(make: Any, steps: int = 3, skipped: int = 0, *, scaled: bool = False) -> Finding:
    model, baseline = model_of(), OptimizerBaseline("SGD")
    optimizer = make(model.parameters())
    for step in range(steps):
        set_gradients(model, step)
        optimizer.step()
    evidence = baseline.observe(optimizer, model, steps)
    evidence = evidence.model_copy(update={"skipped": skipped})
    return rule_o1.finding(evidence, CONSTANTS, "e", scaled=scaled)


@pytest.mark.parametrize("foreach", [None, False, True])
def test_the_harnesss_own_sgd_passes_though_it_has_no_step_counter(foreach: bool | None) -> None:
    found = first_rule(lambda p: build_optimizer(p, CONSTANTS, foreach=foreach))
    assert found.status is Status.PASS, found.message
    assert found.measured == "torch.optim.sgd.SGD, 2 parameters"
    assert found.message == "torch's own SGD stepped every parameter"


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda p: AdamW(p, lr=6e-4, weight_decay=0.1), "is a torch.optim.adamw.AdamW, not torch"),
        (lambda p: SGD(p, lr=1e-3, weight_decay=0.1), "lr is 0.001, not 0.0006"),
        (lambda p: SGD(p, lr=6e-4), "weight_decay is 0, not 0.1"),
        (lambda p: SGD(p, lr=6e-4, weight_decay=0.1, momentum=0.9), "momentum, dampening or"),
        (
            lambda p: SGD(p, lr=6e-4, weight_decay=0.1, momentum=0.9, nesterov=True),
            "momentum, dampening or nesterov is on",
        ),
        (lambda p: SGD(p, lr=6e-4, weight_decay=0.1, maximize=True), "amsgrad or maximize is on"),
    ],
)
def test_another_class_or_other_constants_fail_and_are_named(make: Any, words: str) -> None:
    found = first_rule(make)
    assert found.status is Status.FAIL
    assert words in found.message.replace("is 0.0,", "is 0,")


def test_an_sgd_of_ones_own_is_not_torchs() -> None:
    class Faster(SGD):
        pass

    found = first_rule(lambda p: Faster(p, lr=6e-4, weight_decay=0.1))
    assert found.status is Status.FAIL
    assert "Faster" in found.message


def test_steps_may_be_left_out_only_where_gradients_are_scaled() -> None:
    honest = lambda p: build_optimizer(p, CONSTANTS)  # noqa: E731
    found = first_rule(honest, skipped=2, scaled=True)
    assert found.status is Status.PASS
    assert found.measured is not None
    assert "2 left out (gradients overflowed)" in found.measured
    found = first_rule(honest, skipped=2)
    assert found.status is Status.FAIL
    assert "2 steps were left out, and no gradient is scaled" in found.message


def test_more_steps_left_out_than_an_honest_run_has_break_the_rule() -> None:
    honest = lambda p: build_optimizer(p, CONSTANTS)  # noqa: E731
    assert first_rule(honest, skipped=8, scaled=True).status is Status.PASS
    found = first_rule(honest, skipped=9, scaled=True)
    assert found.status is Status.FAIL
    assert "9 steps were left out, 8 at most may be" in found.message


# -- O2 -------------------------------------------------------------------------------------------


def watched(
    dtype: torch.dtype,
    constants: Constants = CONSTANTS,
    change: Any = None,
    overflowing: tuple[int, ...] = (),
    steps: int = 6,
) -> tuple[StepsEvidence, dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """Return two audited steps of a real optimizer, what was seen, and the replay of it.

    ``change`` is called after each step of the optimizer; those in ``overflowing`` are left out.
    """
    model = model_of(dtype)
    optimizer: Optimizer = build_optimizer(model.parameters(), constants)
    sampler = StepSampler(model, optimizer)
    for index in range(steps):
        set_gradients(model, 100 + index)
        sampler.next()
        if index in (0, steps - 2):
            sampler.glance()
            sampler.before(Step(index, 7, fence=False), 5)
        if index not in overflowing:
            optimizer.step()
        if change is not None:
            change(model)
        sampler.after()
    sampler.next()
    sampler.read()
    seen, again = sampler.tensors(), {}
    for step in sampler.steps():
        if can_replay(step, seen, constants):
            again |= replay(step, seen, "cpu", constants)
    return StepsEvidence(steps=sampler.steps(), pause_ns=1, longest_pause_ns=1), seen, again


def second_rule(
    steps: StepsEvidence,
    seen: dict[str, torch.Tensor],
    again: dict[str, torch.Tensor],
    constants: Constants = CONSTANTS,
    skipped: int = 0,
) -> Finding:
    lists = [{k: v.float().tolist() for k, v in arrays.items()} for arrays in (seen, again)]
    return rule_o2.finding(steps, *lists, lambda step: constants, "e", skipped=skipped)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_replayed_sgd_step_has_the_same_bits_from_the_very_first_on(dtype: torch.dtype) -> None:
    steps, seen, again = watched(dtype)
    assert [step.steps_before for step in steps.steps] == [None, None]
    for step in steps.steps:
        after = seen[f"{step.index}/after/value"]
        assert torch.equal(again[f"{step.index}/replayed/value"], after)
        assert not torch.equal(seen[f"{step.index}/before/value"], after)
        assert f"{step.index}/after/exp_avg" not in seen
    found = second_rule(steps, seen, again)
    assert found.status is Status.PASS, found.message
    assert found.measured is not None
    assert found.measured.endswith("2 steps")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    "other",
    [
        Constants("SGD", lr=1.2e-3, weight_decay=0.1),
        Constants("SGD", lr=6e-4, weight_decay=5.0),
        Constants(lr=6e-4),
    ],
    ids=["lr", "decay", "AdamW"],
)
def test_a_step_that_does_something_else_fails(dtype: torch.dtype, other: Constants) -> None:
    steps, seen, _ = watched(dtype, other)
    again = {}
    for step in steps.steps:
        again |= replay(step, seen, "cpu", CONSTANTS)
    found = second_rule(steps, seen, again)
    assert found.status is Status.FAIL
    assert "replayed elements differ" in found.message


def test_by_the_formula_it_fails_even_where_the_replay_was_made_to_agree() -> None:
    steps, seen, _ = watched(torch.float32, Constants("SGD", lr=1.2e-3, weight_decay=0.1))
    agreeing = {k.replace("after", "replayed"): v for k, v in seen.items() if "/after/" in k}
    found = second_rule(steps, seen, agreeing)
    assert found.status is Status.FAIL
    assert "elements of value are not what SGD makes of them" in found.message


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_step_that_is_left_out_fails_but_where_a_gradient_scaler_says_so(
    dtype: torch.dtype,
) -> None:
    left_out = watched(dtype, overflowing=(4,))
    assert second_rule(*left_out).status is Status.FAIL
    assert second_rule(*left_out, skipped=1).status is Status.PASS


def test_a_scaler_that_left_one_step_out_excuses_no_second() -> None:
    both = watched(torch.float32, overflowing=(0, 4))
    assert second_rule(*both, skipped=1).status is Status.FAIL
    nothing = second_rule(*both, skipped=2)
    assert nothing.status is Status.NOT_OBSERVED


def test_a_step_that_was_left_out_but_changed_something_is_not_excused() -> None:
    def shrink(model: nn.Module) -> None:
        with torch.no_grad():
            next(model.parameters()).mul_(0.99)

    found = second_rule(*watched(torch.float32, change=shrink, overflowing=(4,)), skipped=1)
    assert found.status is Status.FAIL


def test_adamws_moments_are_still_asked_for() -> None:
    steps, seen, again = watched(torch.float32, OFFICIAL_OPTIMIZER)
    lacking = {k: v for k, v in seen.items() if "exp_avg" not in k}
    found = second_rule(steps, lacking, again, OFFICIAL_OPTIMIZER)
    assert found.status is Status.FAIL
    assert "does not keep the moments of AdamW" in found.message


# -- W1 -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("constants", "status"), [(CONSTANTS, Status.PASS), (OFFICIAL_OPTIMIZER, Status.FAIL)]
)
def test_sgd_has_no_bound_on_how_far_a_weight_moves_and_adamw_has(
    constants: Constants, status: Status
) -> None:
    one = {"name": "w", "shape": (4, 2), "dtype": "bfloat16", "sha256": "a" * 64}
    weights = WeightsEvidence(
        pristine=(),
        processed=(ParameterDigest(**one, requires_grad=True),),
        stored_elements=8,
        canonical_elements=8,
    )
    moved = PristineEvidence(parameters=(PristineDigest(**one, largest_move=5.0),))
    found = rule_w1.finding(weights, moved, BF16, [constants] * 60, "e", trains=True)
    assert found.status is status
