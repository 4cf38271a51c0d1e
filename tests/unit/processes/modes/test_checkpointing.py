"""Checkpointed blocks compute the same, keep their names, and keep less for the backward pass."""

from __future__ import annotations

import dataclasses
from collections import Counter
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from llmb.errors import UnavailableError, UsageError
from llmb.processes.modes.checkpointing import checkpoint_blocks
from llmb.reference.data import make_batch
from llmb.reference.models import blocks_of, build
from llmb.reference.shapes import BertShape, Gpt2Shape, LlamaShape, Shape

_SIZES: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "sequence_length": 16,
}
LLAMA = LlamaShape(**_SIZES, num_key_value_heads=2)
SHAPES: list[Shape] = [LLAMA, Gpt2Shape(**_SIZES), BertShape(**_SIZES, dropout=0.0)]


def passed(shape: Shape, frequency: str | None, seed: int = 3) -> tuple[nn.Module, Tensor, int]:
    """Return a model with its gradients, the loss, and bytes that autograd had kept of it.

    What is a parameter is kept anyhow, and does not count.
    """
    model = build(shape, seed=1, dtype=torch.float32)
    if frequency is not None:
        checkpoint_blocks(model, shape, frequency)
    batch = make_batch(seed, 3, shape)
    parameters = {p.untyped_storage().data_ptr() for p in model.parameters()}
    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in parameters:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        loss = model(batch.ids, labels=batch.labels, **batch.extra)
    loss.backward()
    return model, loss.detach(), sum(kept.values())


@pytest.mark.parametrize("frequency", ["1/2", "3/4", "1/1", "op"])
@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: type(shape).__name__)
def test_loss_and_gradients_are_the_same_and_so_is_every_name(shape: Shape, frequency: str) -> None:
    plain, right, _ = passed(shape, None)
    model, loss, _ = passed(shape, frequency)
    assert torch.equal(loss, right)
    assert [name for name, _ in model.named_modules()] == [n for n, _ in plain.named_modules()]
    assert list(model.state_dict()) == list(plain.state_dict())
    for (name, one), (other, two) in zip(
        model.named_parameters(), plain.named_parameters(), strict=True
    ):
        assert name == other
        assert one.grad is not None
        assert two.grad is not None
        assert torch.equal(one.grad, two.grad), name


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: type(shape).__name__)
def test_the_more_blocks_compute_again_the_less_is_kept(shape: Shape) -> None:
    nothing, some, most, every = (
        passed(shape, frequency)[2] for frequency in (None, "1/4", "3/4", "1/1")
    )
    assert every < most < some < nothing
    block = (nothing - every) / 4
    assert nothing - some == pytest.approx(block, rel=0.25)


@pytest.mark.parametrize("frequency", ["2/4", "op"])
def test_chosen_blocks_go_forward_twice_and_the_others_once(frequency: str) -> None:
    model = build(LLAMA, seed=1, dtype=torch.float32)
    checkpoint_blocks(model, LLAMA, frequency)
    calls: Counter[int] = Counter()
    for number, block in enumerate(blocks_of(model, LLAMA)):
        block.input_layernorm.register_forward_hook(
            lambda *_, number=number: calls.update([number])
        )
    batch = make_batch(3, 2, LLAMA)
    model(batch.ids, labels=batch.labels).backward()
    times = {"2/4": [2, 2, 1, 1], "op": [2, 2, 2, 2]}[frequency]
    assert [calls[number] for number in range(4)] == times


def test_a_block_that_keeps_its_class_is_refused() -> None:
    class Fixed(type(next(iter(blocks_of(build(LLAMA, 1, torch.float32), LLAMA))))):  # type: ignore[misc]
        def __setattr__(self, name: str, value: object) -> None:
            if name != "__class__":
                super().__setattr__(name, value)

    model = build(LLAMA, seed=1, dtype=torch.float32)
    for block in blocks_of(model, LLAMA):
        object.__setattr__(block, "__class__", Fixed)
    with pytest.raises(UnavailableError, match=r"block 0 keeps its class .*Fixed"):
        checkpoint_blocks(model, LLAMA, "1/1")


def test_op_keeps_products_and_computes_the_rest_again() -> None:
    products, others = Counter[str](), Counter[str]()

    class Counts(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            name = func.overloadpacket.__name__
            (products if name in ("mm", "addmm", "bmm") else others).update([name])
            return func(*args, **(kwargs or {}))

    def counted(frequency: str | None) -> tuple[int, int]:
        model = build(LLAMA, seed=1, dtype=torch.float32)
        if frequency is not None:
            checkpoint_blocks(model, LLAMA, frequency)
        batch = make_batch(3, 2, LLAMA)
        products.clear()
        others.clear()
        with Counts():
            model(batch.ids, labels=batch.labels).backward()
        return products.total(), others["rsqrt"]

    plain, by_operation, every = counted(None), counted("op"), counted("1/1")
    assert by_operation[0] == plain[0] < every[0]
    assert plain[1] < by_operation[1] == every[1]


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: type(shape).__name__)
def test_a_model_without_blocks_of_its_own_is_refused(shape: Shape) -> None:
    with pytest.raises(UsageError, match="has no blocks of its own any more"):
        checkpoint_blocks(nn.Sequential(nn.Linear(3, 3)), shape, "1/2")


def test_a_block_with_a_forward_of_its_own_is_refused_as_that_would_be_called() -> None:
    model = build(LLAMA, seed=1, dtype=torch.float32)
    block = next(iter(blocks_of(model, LLAMA)))
    block.forward = block.forward
    with pytest.raises(UnavailableError, match="gave block 0 a forward of its own"):
        checkpoint_blocks(model, LLAMA, "1/1")


@pytest.mark.parametrize("layers", [3, 5])
def test_a_model_with_another_number_of_blocks_is_refused(layers: int) -> None:
    model = build(dataclasses.replace(LLAMA, num_hidden_layers=layers), seed=1, dtype=torch.float32)
    with pytest.raises(UsageError, match="--sac-freq: after the plugin's post-processing"):
        checkpoint_blocks(model, LLAMA, "1/2")
