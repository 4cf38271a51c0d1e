"""What is read of an audited step is what the step really had, before its update and after."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from hashlib import sha256
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import AdamW
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from llmb.observe import step_sampler
from llmb.observe.places import GRADIENTS, STATES, VECTOR, choose
from llmb.observe.step_sampler import KINDS, StepSampler
from llmb.reference.optimizer import build_optimizer
from llmb.reference.train_loop import Step

KERNELS = [{"foreach": False}, {"foreach": True}, {"fused": True}]


class Holder(nn.Module):
    """A large, a small and a one-element parameter, and one that gets no gradient."""

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(3)
        for name, shape in (("large", (50, 60)), ("small", (20,)), ("one", (1,)), ("idle", (4,))):
            value = torch.randn(shape, generator=generator).to(dtype)
            setattr(self, name, nn.Parameter(value))


class Operators(TorchDispatchMode):
    """Notes every operator with its numbers and shapes: a lazy device's program."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        described = tree_map(lambda a: tuple(a.shape) if isinstance(a, Tensor) else a, args)
        self.names.append(f"{func} {described}")
        return func(*args, **(kwargs or {}))


class Run:
    """A model, its optimizer and a sampler; every step has gradients of its own."""

    def __init__(
        self,
        model: nn.Module | None = None,
        kernel: Mapping[str, bool] | None = None,
        *,
        lazy: bool = False,
        settle: Callable[[], object] | None = None,
    ) -> None:
        self.model = model or Holder()
        self.optimizer: AdamW = build_optimizer(self.model.parameters(), **(kernel or {}))
        self.sampler = StepSampler(self.model, self.optimizer, lazy=lazy, settle=settle)
        self.index = 0
        #: Of the latest judged step.
        self.digest: str | None = None

    def gradients(self) -> None:
        generator = torch.Generator().manual_seed(100 + self.index)
        for name, p in self.model.named_parameters():
            p.grad = None
            if name != "idle" and p.requires_grad:
                gradient = torch.randn(p.shape, generator=generator).to(p.dtype)
                p.grad = None if p.is_meta else gradient

    def step(
        self, seed: int | None = None, *, is_judged: bool = True
    ) -> dict[str, dict[str, Tensor]]:
        """Make a step, judged or audited where there is a ``seed``; return the state around it."""
        self.gradients()
        self.sampler.glance()
        self.sampler.next()
        before = self.state()
        if seed is not None:
            look = self.sampler.show if is_judged else self.sampler.before
            self.digest = look(Step(self.index, 7000 + self.index, fence=False), seed)
        self.optimizer.step()
        self.sampler.after()
        after = self.state()
        self.optimizer.zero_grad(set_to_none=True)
        self.index += 1
        return {"before": before, "after": after}

    def state(self) -> dict[str, Tensor]:
        found = {}
        for name, p in self.model.named_parameters():
            found[f"value/{name}"] = p.detach().clone()
            found[f"gradient/{name}"] = None if p.grad is None else p.grad.clone()
            for kind, value in self.optimizer.state.get(p, {}).items():
                found[f"{kind}/{name}"] = value.clone()
        return found


def chosen(seed: int, what: str, count: int, name: str, value: Tensor) -> Tensor:
    size = value.numel()
    if what == "state" and size > count:
        size -= size % VECTOR
    return value.flatten()[choose(seed, what, name, size, count).indices()].float()


NAMES = ("large", "small", "one")


def expected(state: dict[str, Tensor], kind: str, seed: int, what: str, count: int) -> Tensor:
    return torch.cat([chosen(seed, what, count, n, state[f"{kind}/{n}"]) for n in NAMES])


@pytest.mark.parametrize("kernel", KERNELS, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("lazy", [False, True])
def test_what_was_read_is_what_there_was_before_the_update_and_after(
    dtype: torch.dtype, kernel: dict[str, bool], lazy: bool
) -> None:
    run = Run(Holder(dtype), kernel, lazy=lazy)
    run.step()
    around = run.step(seed=11)
    run.step()  # what comes later changes nothing of it
    assert run.sampler.read() == (1,)
    found = run.sampler.tensors()
    assert all(t.dtype is torch.float32 and t.device.type == "cpu" for t in found.values())
    before = around["before"]
    assert torch.equal(found["1/gradient"], expected(before, "gradient", 11, "gradient", GRADIENTS))
    assert torch.equal(
        found["1/replay/gradient"], expected(before, "gradient", 11, "state", STATES)
    )
    for when, state in around.items():
        for kind in KINDS:
            right = expected(state, kind, 11, "state", STATES)
            assert torch.equal(found[f"1/{when}/{kind}"], right), (when, kind)
    assert not torch.equal(found["1/before/value"], found["1/after/value"])


def test_in_the_step_after_an_audited_one_it_is_looked_at_once_more_and_not_again() -> None:
    run = Run(Holder(torch.bfloat16))
    run.step()
    after = run.step(seed=11)["after"]
    with torch.no_grad():
        run.model.large.mul_(2)  # as somebody might between two steps
    later = run.step()["before"]
    run.step()
    run.sampler.read()
    found = run.sampler.tensors()
    right = expected(later, "value", 11, "state", STATES)
    assert torch.equal(found["1/next/value"], right)
    assert not torch.equal(found["1/next/value"], found["1/after/value"])
    assert torch.equal(found["1/next/exp_avg"], expected(after, "exp_avg", 11, "state", STATES))


def test_the_gradients_that_an_audited_step_lacked_are_named() -> None:
    run = Run()
    run.step(seed=11)
    (step,) = run.sampler.steps()
    assert step.without_gradient == ("idle",)


# -- glances --------------------------------------------------------------------------------


def glanced(run: Run, index: int) -> list[Tensor]:
    run.sampler.read()
    found = run.sampler.tensors()
    return [found[f"{index}/{name}"] for name in ("asked", "asked before", "asked after")]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_gradients_that_nobody_touches_are_the_same_before_and_after_the_answer(
    dtype: torch.dtype,
) -> None:
    run = Run(Holder(dtype))
    run.step(seed=11)
    asked, before, after = glanced(run, 0)
    assert torch.equal(asked, before)
    assert torch.equal(asked, after)
    assert len(asked) == 64 + 20 + 1


def test_gradients_that_are_put_right_once_somebody_looks_do_not_agree() -> None:
    run = Run()
    run.gradients()
    run.sampler.glance()
    for parameter in run.model.parameters():
        if parameter.grad is not None:
            parameter.grad.mul_(2)
    run.sampler.before(Step(0, 1, fence=False), 11)
    asked, before, after = glanced(run, 0)
    assert not torch.equal(asked, before)
    assert torch.equal(before, after)


@pytest.mark.parametrize("factor", [1.0, 2.0])
def test_the_digest_of_a_glance_changes_with_the_gradients(factor: float) -> None:
    run = Run()
    run.gradients()
    told = run.sampler.glance()
    for parameter in run.model.parameters():
        if parameter.grad is not None:
            parameter.grad.mul_(factor)
    assert (run.sampler.glanced() == told) == (factor == 1.0)


def test_a_device_sends_no_digest_of_a_glance() -> None:
    run = Run(Holder().to("meta"))
    for parameter in run.model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    assert (run.sampler.glance(), run.sampler.glanced()) == ("", "")


def test_a_glance_is_a_copy_and_not_a_look_at_what_will_be() -> None:
    run = Run()
    run.gradients()
    run.sampler.glance()
    kept = run.model.large.grad.clone()
    run.model.large.grad.zero_()
    run.sampler.before(Step(0, 1, fence=False), 11)
    asked, before, _ = glanced(run, 0)
    assert asked.count_nonzero() > before.count_nonzero()
    assert set(asked.tolist()) & set(kept.flatten().tolist())


def test_what_is_glanced_at_cannot_be_told_from_the_steps_before_it_nor_from_a_seed() -> None:
    seen = set()
    for _ in range(20):
        run = Run()
        torch.manual_seed(0)
        run.step(seed=11)
        seen.add(tuple(sorted(glanced(run, 0)[0].tolist())))
    assert len(seen) > 5, "a few of them may be the same by chance"


def test_on_a_lazy_device_every_gradient_is_glanced_at_and_what_is_done_is_the_same() -> None:
    done: list[list[str]] = []
    for index in range(4):
        run = Run(lazy=True)
        run.gradients()
        with Operators() as seen:
            run.sampler.glance()
        on_the_host = ("aten.arange", "aten.mul", "aten.add")  # the places themselves
        done.append([name for name in seen.names if not name.startswith(on_the_host)])
        asked = run.sampler.glance_again(Step(index, 1, fence=False), "before")[f"{index}/asked"]
        assert len(asked) == 8 + 8 + 1, "eight of each parameter, or all it has"
    assert done[0]
    assert done[1:] == done[:-1]


def test_on_a_lazy_device_two_audited_steps_in_a_row_need_no_other_programs() -> None:
    programs: set[tuple[str, ...]] = set()
    with Operators() as seen:

        def settle() -> None:
            """End a program, as the device does: the device compiles the program once."""
            # The host draws the places of the samples; the counter is a number on the host here.
            on_the_host = ("aten.arange", "aten.mul", "aten.add")
            names = (name.partition(" ")[0] for name in seen.names)
            program = tuple(name for name in names if not name.startswith(on_the_host))
            seen.names.clear()
            programs.update({program} if program else ())

        def steps(*audited: int) -> set[tuple[str, ...]]:
            """Return the programs of ten steps, some of which are audited."""
            programs.clear()
            run = Run(lazy=True, settle=settle)
            for index in range(10):
                run.gradients()
                run.sampler.glance()
                run.sampler.next()
                if index in audited:
                    run.sampler.before(Step(index, 1, fence=False), 3)
                run.optimizer.step()
                run.sampler.after()
                settle()
            return set(programs)

        apart = steps(2, 6)
        assert steps(2, 6, 7) == steps(2, 3, 4, 5) == apart
    assert len(apart) > 4


def test_of_many_gradients_some_are_glanced_at_and_over_steps_all_of_them() -> None:
    model = nn.Module()
    for i in range(40):
        model.register_parameter(f"p{i}", nn.Parameter(torch.full((3,), float(i))))
    run, found = Run(model), set()
    for index in range(30):
        for i, parameter in enumerate(model.parameters()):
            parameter.grad = torch.full((3,), float(i))
        run.sampler.glance()
        run.sampler.before(Step(index, 1, fence=False), 11)
        asked, *_ = glanced(run, index)
        assert len(asked) == 16 * 3
        found |= set(asked.tolist())
    assert found == set(map(float, range(40)))


def test_a_step_that_nobody_asked_for_leaves_nothing() -> None:
    run = Run()
    run.step()
    assert run.sampler.read() == ()
    assert run.sampler.tensors() == {}
    assert run.sampler.steps() == ()


def test_the_very_first_step_has_no_moments_before_it_and_no_counter() -> None:
    run = Run()
    run.step(seed=11)
    (step,) = run.sampler.steps()
    assert step.steps_before is None
    found = run.sampler.tensors()
    assert "0/before/value" in found
    assert not {"0/before/exp_avg", "0/before/exp_avg_sq"} & set(found)
    assert {"0/after/exp_avg", "0/after/exp_avg_sq"} <= set(found)


@pytest.mark.parametrize("kernel", KERNELS, ids=str)
def test_steps_are_described_with_the_counter_before_them_and_the_kernel_that_made_them(
    kernel: dict[str, bool],
) -> None:
    run = Run(kernel=kernel)
    for seed in (None, 11, None, 12):
        run.step(seed, is_judged=seed == 12)
    first, second = run.sampler.steps()
    assert (first.index, second.index) == (1, 3)
    assert (first.token_seed, second.token_seed) == (7001, 7003)
    assert (first.seed, second.seed) == (11, 12)
    assert (first.steps_before, second.steps_before) == (1.0, 3.0)
    assert (first.weights_kept, second.weights_kept) == (False, True)
    assert (first.foreach, first.fused) == (kernel.get("foreach"), kernel.get("fused"))
    assert first.capturable is False


def test_segments_say_whose_the_elements_are_and_leave_out_what_has_no_gradient() -> None:
    run = Run(Holder(torch.bfloat16))
    run.step(seed=11)
    (step,) = run.sampler.steps()
    seen = [(s.name, s.dtype, s.gradients, s.states) for s in step.segments]
    assert seen == [
        ("large", "bfloat16", 256, 257),
        ("small", "bfloat16", 20, 20),
        ("one", "bfloat16", 1, 1),
    ]
    assert len(run.sampler.tensors()["0/gradient"]) == 277


def test_of_many_parameters_fewer_elements_each_are_read_and_their_number_is_told() -> None:
    model = nn.ParameterList([nn.Parameter(torch.ones(2000)) for _ in range(200)])
    run = Run(model)
    run.step(seed=11)
    (step,) = run.sampler.steps()
    assert step.states == 164
    assert {(s.gradients, s.states) for s in step.segments} == {(163, 164)}


def test_a_parameter_that_is_not_trained_is_no_segment() -> None:
    model = Holder()
    model.small.requires_grad_(False)
    run = Run(model)
    run.step(seed=11)
    (step,) = run.sampler.steps()
    assert [segment.name for segment in step.segments] == ["large", "one"]


def test_parameters_of_several_types_are_read_side_by_side() -> None:
    model = Holder()
    model.small = nn.Parameter(model.small.detach().bfloat16())
    run = Run(model, {"foreach": False})
    run.step()
    around = run.step(seed=11)
    run.sampler.read()
    found = run.sampler.tensors()["1/after/value"]
    assert torch.equal(found, expected(around["after"], "value", 11, "state", STATES))
    (step,) = run.sampler.steps()
    assert [segment.dtype for segment in step.segments] == ["float32", "bfloat16", "float32"]


def test_a_model_without_any_gradient_is_witnessed_and_nothing_is_found() -> None:
    run = Run()
    run.sampler.glance()
    run.sampler.show(Step(0, 1, fence=False), 11)
    run.sampler.after()
    (step,) = run.sampler.steps()
    assert step.segments == ()
    assert len(run.sampler.tensors()["0/gradient"]) == 0


@pytest.mark.parametrize("lazy", [False, True])
def test_gradients_are_shown_of_judged_steps_alone_each_with_a_digest(*, lazy: bool) -> None:
    run, digests = Run(Holder(torch.bfloat16), lazy=lazy), {}
    for seed, is_judged in ((11, False), (12, True), (None, False), (13, True)):
        run.step(seed, is_judged=is_judged)
        if is_judged:
            digests[f"{run.index - 1}/gradient"] = run.digest
        else:
            assert run.digest is None or not seed
    run.sampler.read()
    shown = {k: t for k, t in run.sampler.tensors().items() if k.endswith("/gradient")}
    shown = {k: t for k, t in shown.items() if "replay" not in k}
    assert {k: sha256(t.numpy().tobytes()).hexdigest() for k, t in shown.items()} == digests
    assert [step.weights_kept for step in run.sampler.steps()] == [False, True, True]
    assert [index for index, _ in run.sampler.gradients_seen()] == [1, 3]


def test_the_digest_is_of_the_sum_over_ranks_which_is_made_once() -> None:
    run, sums = Run(), []

    def total(tensor: Tensor, turn: int) -> Tensor:
        assert turn == 11  # the seed of the elements
        sums.append(tensor)
        return 2 * tensor

    run.sampler = StepSampler(run.model, run.optimizer, total=total)
    before = run.step(seed=11)["before"]
    assert len(sums) == 1
    found = run.sampler.tensors()["0/gradient"]
    assert torch.equal(found, 2 * expected(before, "gradient", 11, "gradient", GRADIENTS))
    assert sha256(found.numpy().tobytes()).hexdigest() == run.digest


def test_where_every_step_is_compared_no_gradient_is_sampled() -> None:
    run = Run()
    run.sampler = StepSampler(run.model, run.optimizer, gradients=False)
    run.step(seed=11, is_judged=False)
    names = {name for name in run.sampler.tensors() if "replay" not in name}
    assert names
    assert not {name for name in names if "gradient" in name or "asked" in name}


def test_which_gradients_were_read_is_told_by_name_parameter_and_element() -> None:
    run = Run()
    run.step(seed=11, is_judged=False)
    gradients: dict[str, Any] = {}
    run.gradients()
    run.sampler.glance()
    run.sampler.show(Step(1, 1, fence=False), 12)
    for index, stored in run.sampler.gradients_seen():
        gradients[index] = torch.cat(
            [p.grad.flatten()[where] for name, p, where in stored if p.grad is not None]
        )
        assert [name for name, *_ in stored] == list(NAMES)
    run.sampler.read()
    assert torch.equal(gradients[1], run.sampler.tensors()["1/gradient"])


def test_another_seed_reads_other_elements() -> None:
    one, other = Run(), Run()
    one.step(seed=11)
    other.step(seed=12)
    assert not torch.equal(
        one.sampler.tensors()["0/gradient"], other.sampler.tensors()["0/gradient"]
    )


def test_reading_back_twice_changes_nothing() -> None:
    run = Run(Holder(torch.bfloat16))
    run.step(seed=11)
    run.sampler.read()
    first = {k: t.clone() for k, t in run.sampler.tensors().items()}
    run.step()
    run.sampler.read()
    assert all(torch.equal(run.sampler.tensors()[k], t) for k, t in first.items())


@pytest.mark.parametrize("kernel", KERNELS, ids=str)
def test_a_witnessed_step_computes_the_same_as_any_other(kernel: dict[str, bool]) -> None:
    watched, alone = Run(Holder(torch.bfloat16), kernel), Run(Holder(torch.bfloat16), kernel)
    for seed in (11, None, 12):
        watched.step(seed)
        alone.step()
    for name, value in alone.state().items():
        other = watched.state()[name]
        assert (value is None and other is None) or torch.equal(value, other)


def test_stages_show_together_what_a_whole_model_shows() -> None:
    whole = Run()
    mine, theirs = ("large", "idle"), ("small", "one")
    shares = []
    for elsewhere in (theirs, mine):
        model = Holder()
        for name in elsewhere:
            setattr(model, name, nn.Parameter(getattr(model, name).to("meta")))
        shares.append(Run(model))
    for run in (whole, *shares):
        for seed in (None, 11, None):
            run.step(seed)
        run.sampler.read()
    right, found = whole.sampler.tensors(), [run.sampler.tensors() for run in shares]
    (step,), others = whole.sampler.steps(), [run.sampler.steps()[0] for run in shares]
    # Of the parameter without a gradient all show zeros, as nobody knows it of another stage.
    names = [s.name for s in step.segments]
    assert [[s.name for s in other.segments] for other in others] == [[*names, "idle"]] * 2
    assert [other.without_gradient for other in others] == [("idle",), ()]
    assert step.without_gradient == ("idle",)
    for key, value in right.items():
        if not key.startswith("1/asked"):
            both = sum(tensors[key] for tensors in found)
            assert torch.equal(both[: len(value)], value), key


def test_which_elements_are_read_is_chosen_once_for_all_that_a_step_shows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run, chosen = Run(), []
    run.step()
    monkeypatch.setattr(
        step_sampler, "choose", lambda *what: chosen.append(what[1:3]) or choose(*what)
    )
    run.step(seed=11)
    run.step()
    of_the_step = [what for what in chosen if what[0] != "glance"]
    assert sorted(of_the_step) == sorted(
        (what, name) for what in ("gradient", "state") for name in NAMES
    )


def test_a_lazy_device_ends_its_program_before_and_after_each_sample_and_the_one_after() -> None:
    run, ends = Run(), []
    run.sampler = StepSampler(
        run.model, run.optimizer, lazy=True, settle=lambda: ends.append(run.index)
    )
    for seed, is_judged in ((11, False), (None, False), (12, True), (None, False)):
        run.step(seed, is_judged=is_judged)
    assert ends == [0, 0, 1, 1, 2, 2, 3, 3]
