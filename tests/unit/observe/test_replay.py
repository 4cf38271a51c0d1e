"""A step made again from its own inputs gives its own outputs, bit for bit, or it was another."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from llmb.observe.replay import can_replay, replay
from llmb.observe.step_sampler import KINDS, StepSampler
from llmb.records.audited import AuditedStep
from llmb.reference.optimizer import build_optimizer
from llmb.reference.recipe import OFFICIAL_OPTIMIZER
from llmb.reference.train_loop import Step

KERNELS = [{"foreach": False}, {"foreach": True}, {"fused": True}]
DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def model_of(dtype: torch.dtype, layers: int = 0) -> nn.Module:
    generator = torch.Generator().manual_seed(1)
    model = nn.Module()
    for name, shape in (("w", (130, 70)), ("v", (33, 40)), ("gain", (70,)), ("one", (1,))):
        value = torch.randn(shape, generator=generator) * 0.02
        model.register_parameter(name, nn.Parameter(value.to(dtype)))
    for layer in range(layers):
        value = torch.randn(75, generator=generator)
        model.register_parameter(f"layer{layer}", nn.Parameter(value.to(dtype)))
    return model


def watched(
    dtype: torch.dtype,
    kernel: Mapping[str, bool],
    change: Any = None,
    steps: int = 4,
    layers: int = 0,
) -> tuple[AuditedStep, dict[str, Tensor]]:
    """Return what was seen of the last of ``steps``; ``change`` meddles with the optimizer."""
    model = model_of(dtype, layers)
    optimizer = build_optimizer(model.parameters(), **kernel)
    sampler = StepSampler(model, optimizer)
    for index in range(steps):
        generator = torch.Generator().manual_seed(100 + index)
        for p in model.parameters():
            p.grad = (torch.randn(p.shape, generator=generator) * 1e-3).to(p.dtype)
        if change is not None and index == 1:
            change(optimizer)
        if index == steps - 1:
            sampler.glance()
            sampler.before(Step(index, 7, fence=False), 5)
        optimizer.step()
    sampler.after()
    sampler.read()
    (step,) = sampler.steps()
    return step, sampler.tensors()


def differing(step: AuditedStep, seen: Mapping[str, Tensor]) -> dict[str, int]:
    found = replay(step, seen, "cpu", OFFICIAL_OPTIMIZER)
    return {
        kind: int(
            (seen[f"{step.index}/after/{kind}"] != found[f"{step.index}/replayed/{kind}"]).sum()
        )
        for kind in KINDS
    }


NONE = dict.fromkeys(KINDS, 0)


@pytest.mark.parametrize("kernel", KERNELS, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("steps", [2, 9])
def test_a_replay_with_the_same_kernel_and_type_gives_the_same_bits(
    dtype: torch.dtype, kernel: dict[str, bool], steps: int
) -> None:
    step, seen = watched(dtype, kernel, steps=steps)
    assert can_replay(step, seen, OFFICIAL_OPTIMIZER)
    assert differing(step, seen) == NONE


@pytest.mark.parametrize("kernel", KERNELS, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("layers", "states"), [(200, 161), (500, 65), (540, 64)])
def test_a_replay_of_many_parameters_with_fewer_elements_each_gives_the_same_bits(
    dtype: torch.dtype, kernel: dict[str, bool], layers: int, states: int
) -> None:
    step, seen = watched(dtype, kernel, steps=2, layers=layers)
    assert step.states == states
    assert min(segment.states for segment in step.segments) > 0
    assert differing(step, seen) == NONE


def test_the_replay_changes_nothing_of_what_was_seen() -> None:
    step, seen = watched(torch.float32, {"fused": True})
    before = {name: tensor.clone() for name, tensor in seen.items()}
    replay(step, seen, "cpu", OFFICIAL_OPTIMIZER)
    assert all(torch.equal(tensor, before[name]) for name, tensor in seen.items())


def grouped(**changes: object) -> Any:
    return lambda optimizer: [group.update(changes) for group in optimizer.param_groups]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    ("change", "kinds"),
    [
        (grouped(betas=(0.8, 0.999)), {"value", "exp_avg"}),
        (grouped(betas=(0.9, 0.99)), {"value", "exp_avg_sq"}),
        (grouped(lr=1e-3), {"value"}),
        (grouped(eps=1e-2), {"value"}),
    ],
    ids=["beta1", "beta2", "lr", "eps"],
)
def test_other_constants_show_in_what_they_act_on(
    dtype: torch.dtype, change: Any, kinds: set[str]
) -> None:
    step, seen = watched(dtype, {"foreach": True}, change)
    found = differing(step, seen)
    assert {kind for kind, count in found.items() if count} == kinds
    assert all(found[kind] > 10 for kind in kinds)


def test_another_weight_decay_shows_in_float32() -> None:
    step, seen = watched(torch.float32, {"foreach": True}, grouped(weight_decay=0.5))
    assert differing(step, seen)["value"] > 100


def test_moments_rounded_to_sixteen_bits_show_in_float32() -> None:
    def rounding(optimizer: torch.optim.AdamW) -> None:
        def hook(*_: object) -> None:
            for state in optimizer.state.values():
                for kind in KINDS[1:]:
                    state[kind].copy_(state[kind].bfloat16())

        optimizer.register_step_post_hook(hook)

    step, seen = watched(torch.float32, {"fused": True}, rounding)
    found = differing(step, seen)
    assert found["exp_avg"] > 500
    assert found["exp_avg_sq"] > 500


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_step_that_was_left_out_shows(dtype: torch.dtype) -> None:
    step, seen = watched(dtype, {"foreach": True})
    for kind in KINDS:
        seen[f"{step.index}/after/{kind}"] = seen[f"{step.index}/before/{kind}"]
    assert sum(differing(step, seen).values()) > 500


def test_a_step_counter_that_lags_behind_shows() -> None:
    step, seen = watched(torch.float32, {"fused": True})
    behind = step.model_copy(update={"steps_before": 1.0})
    assert differing(behind, seen)["value"] > 100


def test_the_very_first_step_cannot_be_replayed_and_neither_what_was_not_read_in_full() -> None:
    step, seen = watched(torch.float32, {"fused": True}, steps=1)
    assert not can_replay(step, seen, OFFICIAL_OPTIMIZER)
    step, seen = watched(torch.float32, {"fused": True})
    assert can_replay(step, seen, OFFICIAL_OPTIMIZER)
    for name in seen:
        if name not in ("3/gradient", "3/asked", "3/asked before", "3/asked after"):
            less = {n: t for n, t in seen.items() if n != name}
            assert not can_replay(step, less, OFFICIAL_OPTIMIZER), name
