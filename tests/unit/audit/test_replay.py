"""O2: what the optimizer left is what torch's AdamW makes of it, bit for bit and by formula."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from llmb.audit.replay import finding as judge
from llmb.observe.replay import replay
from llmb.observe.step_sampler import KINDS, StepSampler
from llmb.records.audited import AuditedStep, StepsEvidence
from llmb.records.finding import Finding, Level, Status
from llmb.reference.optimizer import build_optimizer
from llmb.reference.recipe import OFFICIAL_OPTIMIZER
from llmb.reference.train_loop import Step

Arrays = dict[str, list[float]]
DTYPES = ["float32", "bfloat16", "float16"]
Change = Callable[[torch.optim.AdamW], object]


def watched(
    dtype: str, change: Change | None = None, steps: int = 6, clip: float | None = None
) -> tuple[Any, Arrays, Arrays]:
    """Return two audited steps of a real AdamW, what was seen of them and the replay of it."""
    generator = torch.Generator().manual_seed(1)
    model = nn.Module()
    for name, shape in (("w", (40, 30)), ("gain", (70,))):
        value = torch.randn(shape, generator=generator) * 0.02
        model.register_parameter(name, nn.Parameter(value.to(getattr(torch, dtype))))
    optimizer = build_optimizer(model.parameters(), fused=True)
    if change is not None:
        change(optimizer)
    sampler = StepSampler(model, optimizer)
    for index in range(steps):
        for p in model.parameters():
            p.grad = (torch.randn(p.shape, generator=generator) * 1e-3).to(p.dtype)
        sampler.next()
        if index in (2, steps - 1):
            sampler.glance()
            sampler.before(Step(index, 7, fence=False), 5)
        if clip is not None:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
            sampler.clipped()
        optimizer.step()
        sampler.after()
    sampler.next()
    sampler.read()
    seen = sampler.tensors()
    again = {}
    for step in sampler.steps():
        if all(f"{step.index}/before/{kind}" in seen for kind in KINDS):
            again |= replay(step, seen, "cpu", OFFICIAL_OPTIMIZER)
    found = StepsEvidence(steps=sampler.steps(), pause_ns=1, longest_pause_ns=1)
    return found, as_lists(seen), as_lists(again)


def as_lists(tensors: dict[str, torch.Tensor]) -> Arrays:
    return {name: tensor.tolist() for name, tensor in tensors.items()}


def judged(steps: StepsEvidence, seen: Arrays, again: Arrays) -> Finding:
    return judge(steps, seen, again, lambda step: OFFICIAL_OPTIMIZER, "e")


@pytest.mark.parametrize("dtype", DTYPES)
def test_an_honest_step_passes(dtype: str) -> None:
    finding = judged(*watched(dtype))
    assert (finding.id, finding.level, finding.status) == ("O2", Level.BLOCK, Status.PASS)
    assert finding.measured is not None
    assert finding.measured.startswith("0 of 1962 elements differ")
    assert "2 steps" in finding.measured
    assert finding.evidence == ("e",)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    "changes",
    [{"betas": (0.8, 0.999)}, {"betas": (0.9, 0.99)}, {"lr": 1e-3}, {"eps": 1e-3}],
    ids=str,
)
def test_other_constants_fail(dtype: str, changes: dict[str, object]) -> None:
    def change(optimizer: torch.optim.AdamW) -> None:
        optimizer.param_groups[0].update(changes)

    finding = judged(*watched(dtype, change))
    assert finding.status is Status.FAIL
    assert "replayed elements differ" in finding.message


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_by_the_formula_other_constants_fail_even_where_the_replay_was_made_to_agree(
    dtype: str,
) -> None:
    def change(optimizer: torch.optim.AdamW) -> None:
        optimizer.param_groups[0].update(betas=(0.8, 0.99))

    steps, seen, _ = watched(dtype, change)
    agreeing = {
        name.replace("after", "replayed"): value for name, value in seen.items() if "after" in name
    }
    finding = judged(steps, seen, agreeing)
    assert finding.status is Status.FAIL
    assert "are not what AdamW makes of them" in finding.message
    assert "exp_avg_sq" in finding.message


def fused_for_cuda(optimizer: torch.optim.AdamW, beta2: float) -> None:
    """Let ``optimizer`` step as torch's fused kernel for CUDA: all in float32, constants too."""

    def step(*_: object) -> None:
        for group in optimizer.param_groups:
            one, first, second = (torch.tensor(x) for x in (1.0, group["betas"][0], beta2))
            for p in group["params"]:
                state = optimizer.state[p]
                if not state:
                    state |= {"step": torch.tensor(0.0)}
                    state |= {kind: torch.zeros_like(p) for kind in KINDS[1:]}
                state["step"] += 1
                p.data -= group["lr"] * group["weight_decay"] * p.data
                mean, square = state["exp_avg"], state["exp_avg_sq"]
                mean.copy_(first * mean + (one - first) * p.grad)
                square.copy_(second * square + (one - second) * p.grad * p.grad)
                size = square.sqrt() / (one - second ** state["step"]).sqrt() + group["eps"]
                p.data -= group["lr"] / (one - first ** state["step"]) * mean / size

    optimizer.step = step  # type: ignore[assignment, method-assign]


@pytest.mark.parametrize(("beta2", "status"), [(0.999, Status.PASS), (0.9989, Status.FAIL)])
def test_the_formula_allows_constants_in_float32_and_no_others(
    beta2: float, status: Status
) -> None:
    steps, seen, _ = watched("float32", lambda optimizer: fused_for_cuda(optimizer, beta2))
    agreeing = {n.replace("after", "replayed"): v for n, v in seen.items() if "after" in n}
    finding = judged(steps, seen, agreeing)
    assert finding.status is status, finding.message


def rounded_moments(optimizer: torch.optim.AdamW) -> None:
    def hook(*_: object) -> None:
        for state in optimizer.state.values():
            for kind in KINDS[1:]:
                state[kind].copy_(state[kind].bfloat16())

    optimizer.register_step_post_hook(hook)


def test_moments_of_sixteen_bits_in_a_float32_run_fail() -> None:
    assert judged(*watched("float32", rounded_moments)).status is Status.FAIL


def doubled(optimizer: torch.optim.AdamW) -> None:
    step = optimizer.step
    optimizer.step = lambda: (step(), step())


def left_out(optimizer: torch.optim.AdamW) -> None:
    step, calls = optimizer.step, []

    def every_other() -> None:
        calls.append(1)
        if len(calls) % 2:
            step()

    optimizer.step = every_other


@pytest.mark.parametrize("change", [doubled, left_out])
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_step_made_twice_or_left_out_fails(dtype: str, change: Change) -> None:
    assert judged(*watched(dtype, change)).status is Status.FAIL


# -- arrays that were meddled with ----------------------------------------------------------


def only(steps: StepsEvidence, index: int = 5) -> AuditedStep:
    return next(step for step in steps.steps if step.index == index)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_an_element_that_is_no_number_never_passes(kind: str, bad: float) -> None:
    steps, seen, again = watched("bfloat16")
    for changed in ({**seen}, {**again}):
        name = f"5/after/{kind}" if changed.keys() == seen.keys() else f"5/replayed/{kind}"
        changed[name] = [bad, *changed[name][1:]]
        pair = (changed, again) if name in seen else (seen, changed)
        assert judged(steps, *pair).status is Status.FAIL


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("what", ["replay/gradient", *(f"before/{kind}" for kind in KINDS)])
def test_an_input_that_is_no_number_never_passes_not_even_beside_zeros(
    what: str, bad: float
) -> None:
    steps, seen, again = watched("bfloat16")
    for name in seen:
        if name.startswith("5/"):
            seen[name] = [0.0, *seen[name][1:]]
    again |= {name: [0.0, *value[1:]] for name, value in again.items()}
    seen[f"5/{what}"] = [bad, *seen[f"5/{what}"][1:]]
    assert judged(steps, seen, again).status is Status.FAIL


@pytest.mark.parametrize("kind", KINDS)
def test_a_nan_in_replay_and_run_alike_is_no_agreement(kind: str) -> None:
    steps, seen, again = watched("bfloat16")
    for arrays, name in ((seen, f"5/after/{kind}"), (again, f"5/replayed/{kind}")):
        arrays[name] = [math.nan, *arrays[name][1:]]
    assert judged(steps, seen, again).status is Status.FAIL


def test_one_element_that_differs_by_more_than_a_last_place_fails() -> None:
    steps, seen, again = watched("bfloat16")
    value = seen["5/after/value"][3]
    seen["5/after/value"] = [*seen["5/after/value"][:3], value * 1.05, *seen["5/after/value"][4:]]
    assert judged(steps, seen, again).status is Status.FAIL


def bumped(values: list[float], every: int) -> list[float]:
    """Move one in ``every`` elements by one last place of bfloat16."""
    found = torch.tensor(values).bfloat16()
    bits = found.view(torch.int16).clone()
    bits[::every] += 1
    return bits.view(torch.bfloat16).float().tolist()


@pytest.mark.parametrize(("every", "status"), [(100, Status.PASS), (10, Status.FAIL)])
def test_a_few_elements_may_differ_by_one_last_place_and_many_may_not(
    every: int, status: Status
) -> None:
    steps, seen, again = watched("bfloat16")
    again |= {
        f"{index}/replayed/{kind}": bumped(again[f"{index}/replayed/{kind}"], every)
        for index in (2, 5)
        for kind in KINDS
    }
    finding = judged(steps, seen, again)
    assert finding.status is status
    assert "0 by more than a last place" in str(finding.measured)


@pytest.mark.parametrize("kind", KINDS)
def test_a_replay_of_another_length_fails(kind: str) -> None:
    steps, seen, again = watched("float32")
    again[f"5/replayed/{kind}"] = again[f"5/replayed/{kind}"][:-1]
    assert judged(steps, seen, again).status is Status.FAIL


@pytest.mark.parametrize("kind", KINDS)
def test_what_changed_between_an_audited_step_and_the_next_fails(kind: str) -> None:
    steps, seen, again = watched("float32")
    for name in KINDS:
        seen[f"5/next/{name}"] = list(seen[f"5/after/{name}"])
    assert judged(steps, seen, again).status is Status.PASS
    seen[f"5/next/{kind}"][7] += 1e-3
    finding = judged(steps, seen, again)
    assert finding.status is Status.FAIL
    assert f"1 elements of {kind} changed between step 5 and the next" in finding.message


def test_an_optimizer_that_keeps_other_state_fails_and_is_no_crash() -> None:
    steps, seen, again = watched("float32")
    del seen["5/before/exp_avg"]
    finding = judged(steps, seen, again)
    assert finding.status is Status.FAIL
    assert "does not keep the moments of AdamW" in finding.message


def test_without_a_replay_an_honest_step_is_not_observed_and_a_wrong_one_still_fails() -> None:
    steps, seen, _ = watched("float32")
    assert judged(steps, seen, {}).status is Status.NOT_OBSERVED
    seen["5/after/exp_avg"] = [2 * value for value in seen["5/after/exp_avg"]]
    assert judged(steps, seen, {}).status is Status.FAIL


def test_where_one_of_two_steps_could_not_be_replayed_the_other_is_judged() -> None:
    steps, seen, again = watched("float32")
    part = {name: value for name, value in again.items() if name.startswith("2/")}
    assert judged(steps, seen, part).status is Status.PASS
    part["2/replayed/value"] = [2 * value for value in part["2/replayed/value"]]
    assert judged(steps, seen, part).status is Status.FAIL


def test_the_very_first_step_alone_is_not_observed() -> None:
    steps, seen, again = watched("float32", steps=1)
    finding = judged(steps, seen, again)
    assert (finding.status, finding.observer) == (Status.NOT_OBSERVED, "none")
    nothing = StepsEvidence(steps=(), pause_ns=0, longest_pause_ns=0)
    assert judged(nothing, {}, {}).status is Status.NOT_OBSERVED


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("dtype", DTYPES)
def test_an_honest_run_is_never_accused_however_small_or_large_its_gradients(
    dtype: str, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    model = nn.Linear(30, 40, bias=False).to(getattr(torch, dtype))
    optimizer = build_optimizer(model.parameters(), fused=True)
    sampler = StepSampler(model, optimizer)
    for index in range(4):
        size = 10.0 ** (-8 + 3 * torch.rand((), generator=generator).item() * index)
        model.weight.grad = (torch.randn(40, 30, generator=generator) * size).to(model.weight.dtype)
        if index == 3:
            sampler.glance()
            sampler.before(Step(index, 7, fence=False), seed)
        optimizer.step()
    sampler.after()
    sampler.next()
    sampler.read()
    seen = sampler.tensors()
    (step,) = sampler.steps()
    steps = StepsEvidence(steps=(step,), pause_ns=1, longest_pause_ns=1)
    finding = judged(steps, as_lists(seen), as_lists(replay(step, seen, "cpu", OFFICIAL_OPTIMIZER)))
    assert finding.status is Status.PASS, finding.message


def test_a_step_that_nobody_looked_at_again_fails() -> None:
    steps, seen, again = watched("bfloat16")
    left = {name: array for name, array in seen.items() if "/next/exp_avg_sq" not in name}
    found = judged(steps, left, again)
    assert found.status is Status.FAIL
    assert "exp_avg_sq was not looked at again in the step after step 2" in found.message


# -- clipping -------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("most", [0.01, 100.0])
def test_a_clipped_step_is_replayed_with_its_clipped_gradients(dtype: str, most: float) -> None:
    steps, seen, again = watched(dtype, clip=most)
    found = judge(steps, seen, again, lambda step: OFFICIAL_OPTIMIZER, "e", most)
    assert found.status is Status.PASS, found.message


def test_gradients_that_were_not_clipped_enough_fail() -> None:
    steps, seen, again = watched("float32", clip=0.02)
    found = judge(steps, seen, again, lambda step: OFFICIAL_OPTIMIZER, "e", 0.01)
    assert found.status is Status.FAIL
    assert "not to a norm of 0.01" in found.message


def test_gradients_that_were_never_clipped_fail() -> None:
    steps, seen, again = watched("float32")
    found = judge(steps, seen, again, lambda step: OFFICIAL_OPTIMIZER, "e", 0.01)
    assert found.status is Status.FAIL
    assert "not read before they were clipped" in found.message


def test_a_gradient_that_was_scaled_unlike_the_others_fails() -> None:
    steps, seen, again = watched("float32", clip=0.01)
    seen[f"{steps.steps[-1].index}/replay/unclipped"][3] *= 1.5
    found = judge(steps, seen, again, lambda step: OFFICIAL_OPTIMIZER, "e", 0.01)
    assert found.status is Status.FAIL
    assert "gradients were not scaled as the others" in found.message


def test_gradients_that_were_turned_round_are_not_clipped() -> None:
    steps, seen, again = watched("float32", clip=0.01)
    last = steps.steps[-1].index
    seen[f"{last}/replay/unclipped"] = [-value for value in seen[f"{last}/replay/gradient"]]
    found = judge(steps, seen, again, lambda step: OFFICIAL_OPTIMIZER, "e", 0.01)
    assert found.status is Status.FAIL
    assert "scaled by -1, not to a norm of 0.01" in found.message
