"""What is written down of an optimizer: every way to swap, patch or starve it is visible."""

from __future__ import annotations

import functools
from collections.abc import Callable

import pytest
import torch
import torch.optim.optimizer as optim_module
from torch import nn
from torch.optim import SGD, AdamW

from llmb.audit.optimizer import finding as judge
from llmb.observe.optimizer import OptimizerBaseline
from llmb.records.evidence import OptimizerEvidence
from llmb.records.finding import Status
from llmb.reference.optimizer import build_optimizer
from llmb.reference.recipe import OFFICIAL_OPTIMIZER

STEPS = 3


@pytest.fixture
def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2, bias=False))


@pytest.fixture
def baseline() -> OptimizerBaseline:
    return OptimizerBaseline()


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int = STEPS) -> None:
    for _ in range(steps):
        model(torch.ones(1, 3)).sum().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


def observed(
    baseline: OptimizerBaseline, model: nn.Module, optimizer: torch.optim.Optimizer
) -> OptimizerEvidence:
    train(model, optimizer)
    return baseline.observe(optimizer, model, STEPS)


def assert_fails(evidence: OptimizerEvidence) -> None:
    assert judge(evidence, OFFICIAL_OPTIMIZER, "x").status is Status.FAIL


@pytest.mark.parametrize(
    "switches",
    [{}, {"fused": True}, {"foreach": True}, {"foreach": False}, {"fused": False}],
    ids=str,
)
def test_the_harnesss_own_optimizer_is_written_down_as_honest(
    baseline: OptimizerBaseline, model: nn.Module, switches: dict[str, bool]
) -> None:
    found = observed(baseline, model, build_optimizer(model.parameters(), **switches))
    assert judge(found, OFFICIAL_OPTIMIZER, "x").status is Status.PASS, judge(
        found, OFFICIAL_OPTIMIZER, "x"
    ).message
    assert found.class_name == "torch.optim.adamw.AdamW"
    assert (found.trainable, found.missing, found.repeated) == (3, (), ())
    assert (found.steps_min, found.steps_max) == (STEPS, STEPS)
    (group,) = found.groups
    assert (group.parameters, group.lr, group.betas) == (3, 1e-5, (0.9, 0.999))
    assert (group.eps, group.weight_decay) == (1e-6, 0.01)
    assert group.fused == switches.get("fused")


def test_a_baseline_taken_before_any_other_optimizer_exists_still_knows_the_wrapped_step(
    model: nn.Module,
) -> None:
    # torch wraps ``step`` when a class makes its first instance; a second baseline sees the same.
    first, second = OptimizerBaseline(), OptimizerBaseline()
    optimizer = build_optimizer(model.parameters())
    assert first.observe(optimizer, model, 0).step_is_torchs
    assert second.observe(optimizer, model, 0).step_is_torchs


def test_another_class_is_seen(baseline: OptimizerBaseline, model: nn.Module) -> None:
    train(model, optimizer := torch.optim.Adam(model.parameters()))
    found = baseline.observe(optimizer, model, STEPS)
    assert not found.class_is_torchs
    assert found.class_name == "torch.optim.adam.Adam"
    assert_fails(found)


def test_an_optimizer_without_adamws_constants_cannot_be_written_down_as_one(
    baseline: OptimizerBaseline, model: nn.Module
) -> None:
    found = observed(baseline, model, SGD(model.parameters(), lr=OFFICIAL_OPTIMIZER.lr))
    assert not found.class_is_torchs
    assert not found.step_is_torchs
    (group,) = found.groups
    assert (group.betas, group.eps) == (None, None)
    assert_fails(found)


def test_a_subclass_is_seen_even_when_it_borrows_the_name(
    baseline: OptimizerBaseline, model: nn.Module
) -> None:
    fake = type("AdamW", (AdamW,), {"__module__": "torch.optim.adamw"})
    optimizer = fake(model.parameters(), lr=1e-5, eps=1e-6)
    found = observed(baseline, model, optimizer)
    assert found.class_name == "torch.optim.adamw.AdamW"
    assert not found.class_is_torchs
    assert_fails(found)


def test_a_step_replaced_on_the_class_is_seen_even_when_it_wraps_the_original(
    baseline: OptimizerBaseline, model: nn.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = AdamW.step

    @functools.wraps(original)
    def lazy(self, closure=None):
        return original(self, closure)

    monkeypatch.setattr(AdamW, "step", lazy)
    found = observed(baseline, model, build_optimizer(model.parameters()))
    assert not found.step_is_torchs
    assert_fails(found)


def test_code_swapped_within_torchs_own_step_is_seen(
    baseline: OptimizerBaseline, model: nn.Module
) -> None:
    import inspect

    inner = inspect.unwrap(AdamW.step)
    original = inner.__code__

    def other(self, closure=None):
        return None

    try:
        inner.__code__ = other.__code__
        found = baseline.observe(build_optimizer(model.parameters()), model, 0)
    finally:
        inner.__code__ = original
    assert not found.step_is_torchs


def test_a_step_put_on_the_instance_is_seen(baseline: OptimizerBaseline, model: nn.Module) -> None:
    optimizer = build_optimizer(model.parameters())
    optimizer.step = lambda closure=None: None
    found = observed(baseline, model, optimizer)
    assert found.instance_overrides == ("step",)
    assert_fails(found)


def test_a_scheduler_that_wraps_the_step_is_seen(
    baseline: OptimizerBaseline, model: nn.Module
) -> None:
    optimizer = build_optimizer(model.parameters())
    torch.optim.lr_scheduler.ConstantLR(optimizer, factor=1.0)
    assert_fails(observed(baseline, model, optimizer))


def test_a_parameter_left_out_is_named(baseline: OptimizerBaseline, model: nn.Module) -> None:
    found = observed(baseline, model, build_optimizer([model[0].weight, model[1].weight]))
    assert found.missing == ("0.bias",)
    assert_fails(found)


def test_a_parameter_that_is_not_trained_need_not_be_stepped(
    baseline: OptimizerBaseline, model: nn.Module
) -> None:
    model[0].bias.requires_grad_(False)
    found = observed(
        baseline, model, build_optimizer(p for p in model.parameters() if p.requires_grad)
    )
    assert (found.trainable, found.missing) == (2, ())


def test_padding_that_needs_no_gradient_may_be_held_without_a_counter(
    baseline: OptimizerBaseline, model: nn.Module
) -> None:
    model[0].padding = nn.Parameter(torch.empty(0), requires_grad=False)
    found = observed(baseline, model, build_optimizer(model.parameters()))
    assert (found.trainable, found.steps_min, found.missing) == (3, STEPS, ())
    assert judge(found, OFFICIAL_OPTIMIZER, "x").status is Status.PASS


def test_a_parameter_held_twice_is_named(baseline: OptimizerBaseline, model: nn.Module) -> None:
    optimizer = build_optimizer(model.parameters())
    twice = {**optimizer.param_groups[0], "params": [model[0].bias]}
    optimizer.param_groups.append(twice)
    found = baseline.observe(optimizer, model, 0)
    assert found.repeated == ("0.bias",)
    assert_fails(found)


def register(optimizer: torch.optim.Optimizer, where: str) -> Callable[[], None]:
    def hook(*_: object) -> None:
        return None

    if where.startswith("global"):
        return getattr(optim_module, f"register_optimizer_step_{where[7:]}_hook")(hook).remove
    return getattr(optimizer, f"register_step_{where}_hook")(hook).remove


@pytest.mark.parametrize("where", ["pre", "post", "global pre", "global post"])
def test_every_kind_of_step_hook_is_counted(
    baseline: OptimizerBaseline, model: nn.Module, where: str
) -> None:
    optimizer = build_optimizer(model.parameters())
    remove = register(optimizer, where)
    try:
        found = baseline.observe(optimizer, model, 0)
    finally:
        remove()
    assert found.step_hooks == 1
    assert_fails(found)


def test_steps_that_were_skipped_show_in_the_counters(
    baseline: OptimizerBaseline, model: nn.Module
) -> None:
    optimizer = build_optimizer(model.parameters())
    train(model, optimizer, STEPS - 1)
    found = baseline.observe(optimizer, model, STEPS)
    assert (found.steps_min, found.steps_max, found.steps_expected) == (2, 2, 3)
    assert_fails(found)


def test_one_parameter_that_was_skipped_once_shows_in_the_smallest_counter(
    baseline: OptimizerBaseline, model: nn.Module
) -> None:
    optimizer = build_optimizer(model.parameters())
    train(model, optimizer)
    optimizer.state[model[0].bias]["step"] -= 1
    found = baseline.observe(optimizer, model, STEPS)
    assert (found.steps_min, found.steps_max) == (STEPS - 1, STEPS)
    assert_fails(found)


def test_a_parameter_that_never_got_a_gradient_has_no_counter_and_is_seen(
    baseline: OptimizerBaseline, model: nn.Module
) -> None:
    model.unused = nn.Parameter(torch.zeros(2))
    found = observed(baseline, model, build_optimizer(model.parameters()))
    assert found.steps_min is None
    assert_fails(found)


@pytest.mark.parametrize(
    ("name", "value"),
    [("lr", 1e-3), ("eps", 1e-8), ("weight_decay", 0.0), ("amsgrad", True), ("maximize", True)],
)
def test_a_constant_changed_along_the_way_is_seen(
    baseline: OptimizerBaseline, model: nn.Module, name: str, value: object
) -> None:
    optimizer = build_optimizer(model.parameters())
    optimizer.param_groups[0][name] = value
    found = baseline.observe(optimizer, model, 0)
    assert getattr(found.groups[0], name) == value
    assert_fails(found)
