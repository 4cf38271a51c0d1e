"""One pass of the reference model, its gradients reduced as they come, is that pass."""

from __future__ import annotations

import math
import weakref
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from llmb.formats import class_of
from llmb.observe import passes, probes
from llmb.observe.idle import Activity
from llmb.observe.passes import Numerics, Samples, Sketches, plain_pass, without_layers
from llmb.observe.sketch import sketch
from llmb.reference.data import Batch, make_batch, random_tokens
from llmb.reference.formats import emulate
from llmb.reference.llama import Llama
from llmb.reference.models import build
from llmb.reference.shapes import BertShape
from tests.unit.builders_audit import SMALL

FP8 = class_of("FP8", None).format
IDS = random_tokens(3, 4, SMALL.sequence_length, SMALL.vocab_size)


class Kept:
    """Keeps every gradient, parts added up."""

    def __init__(self) -> None:
        self.gradients: dict[str, Tensor] = {}
        self.calls = 0

    def add(self, parameter: str, gradient: Tensor) -> None:
        self.calls += 1
        known = self.gradients.get(parameter, torch.zeros_like(gradient))
        self.gradients[parameter] = known + gradient


def model_of(dtype: torch.dtype = torch.float32) -> Llama:
    return build(SMALL, seed=5, dtype=dtype)


def run(
    collect: passes.Collector, dtype: torch.dtype = torch.float32, parts: int = 1, **how: object
) -> float:
    values = {name: p.detach() for name, p in model_of().named_parameters()}
    numerics, batch = Numerics(dtype, "cpu", **how), Batch(IDS, IDS)
    return plain_pass(values.__getitem__, SMALL, batch, numerics, collect, parts=parts)


def by_hand(model: torch.nn.Module) -> tuple[float, dict[str, Tensor]]:
    loss = model(IDS, labels=IDS)
    loss.backward()
    return loss.item(), {name: p.grad for name, p in model.named_parameters()}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_loss_and_gradients_are_those_of_the_reference_model_bit_for_bit(
    dtype: torch.dtype,
) -> None:
    kept = Kept()
    loss, gradients = by_hand(model_of().to(dtype))
    assert run(kept, dtype) == loss
    assert list(kept.gradients) != []
    assert {n: g.dtype for n, g in kept.gradients.items()} == dict.fromkeys(gradients, dtype)
    assert all(torch.equal(kept.gradients[name], gradients[name]) for name in gradients)


def test_with_a_format_the_products_are_rounded_to_it() -> None:
    kept = Kept()
    loss, gradients = by_hand(emulate(model_of(), FP8))
    assert run(kept, emulated=FP8) == loss
    assert all(torch.equal(kept.gradients[name], gradients[name]) for name in gradients)
    assert loss != by_hand(model_of())[0]


def test_a_wide_loss_is_that_of_the_narrow_logits_in_float32() -> None:
    narrow = model_of(torch.bfloat16)
    logits = narrow(IDS)
    assert logits.dtype is torch.bfloat16
    targets = F.pad(IDS[:, 1:], (0, 1), value=-100).flatten()
    loss = F.cross_entropy(logits.float().flatten(0, 1), targets, ignore_index=-100)
    loss.backward()
    kept = Kept()
    assert run(kept, torch.bfloat16, wide_loss=True) == loss.item()
    for name, parameter in narrow.named_parameters():
        assert torch.equal(kept.gradients[name], parameter.grad), name
    plain = Kept()
    assert run(plain, torch.bfloat16) != loss.item()


def test_of_a_float32_pass_the_loss_is_wide_anyway() -> None:
    plain, wide = Kept(), Kept()
    assert run(plain) == run(wide, wide_loss=True)
    assert all(torch.equal(wide.gradients[name], g) for name, g in plain.gradients.items())


@pytest.mark.parametrize("parts", [2, 4])
def test_a_batch_taken_in_pieces_adds_up_to_the_whole(parts: int) -> None:
    whole, pieces = Kept(), Kept()
    loss = run(whole, torch.float64)
    assert run(pieces, torch.float64, parts=parts) == pytest.approx(loss, rel=1e-12)
    for name, gradient in whole.gradients.items():
        torch.testing.assert_close(pieces.gradients[name], gradient, rtol=1e-10, atol=1e-14)
    assert pieces.calls > whole.calls


def test_every_parameter_tells_its_gradient_once_and_forgets_it_before_the_next() -> None:
    class Looking(Kept):
        def __init__(self) -> None:
            super().__init__()
            self.seen: list[weakref.ref[Tensor]] = []

        def add(self, parameter: str, gradient: Tensor) -> None:
            assert all(reference() is None for reference in self.seen), "held at the same time"
            self.seen.append(weakref.ref(gradient))
            self.calls += 1

    looking = Looking()
    run(looking)
    assert looking.calls == 2 * 9 + 3


def test_weights_are_asked_for_by_name_and_each_once() -> None:
    asked: list[str] = []
    weights = dict(model_of().named_parameters())

    def read(name: str) -> Tensor:
        asked.append(name)
        return weights[name].detach()

    plain_pass(read, SMALL, Batch(IDS, IDS), Numerics(torch.float32, "cpu"), Kept())
    assert asked == list(weights)
    assert all(parameter.grad is None for parameter in weights.values())


# -- sketches -------------------------------------------------------------------------------


def test_sketches_are_those_of_whole_gradients_by_pass_and_parameter() -> None:
    found, kept = Sketches("live", 9, SMALL), Kept()
    found.loss(torch.tensor(run(found)))
    loss = run(kept)
    assert set(found.tensors) == {"live/loss", *(f"live/{name}" for name in kept.gradients)}
    for name, gradient in kept.gradients.items():
        assert torch.equal(found.tensors[f"live/{name}"], sketch(gradient, 9, f"live/{name}"))
    assert found.tensors["live/loss"].tolist() == [torch.tensor(loss).item()]


def test_sketches_of_pieces_add_up() -> None:
    whole, pieces = Sketches("live", 9, SMALL), Sketches("live", 9, SMALL)
    run(whole)
    run(pieces, parts=4)
    for name, one in whole.tensors.items():
        torch.testing.assert_close(pieces.tensors[name], one, rtol=1e-4, atol=1e-7)


def test_of_the_branches_pass_the_heads_gradient_is_sketched_once_more_for_each_branch() -> None:
    found, kept = Sketches(probes.BRANCHES, 9, SMALL), Kept()
    run(found)
    run(kept)
    head = kept.gradients["lm_head.weight"]
    channels = probes.channels(SMALL)
    assert len(channels) == 4
    for branch, own in channels.items():
        name = f"branches/out/{branch}"
        assert torch.equal(found.tensors[name], sketch(head[:, own.slice], 9, name))
    assert not any("/out/" in name for name in Sketches("head", 9, SMALL).tensors)


def test_the_loss_is_kept_as_float32_whatever_it_was_computed_in() -> None:
    found = Sketches("live", 9, SMALL)
    found.loss(torch.tensor(10.375, dtype=torch.bfloat16))
    assert found.tensors["live/loss"].dtype is torch.float32
    assert found.tensors["live/loss"].tolist() == [10.375]


# -- samples --------------------------------------------------------------------------------


def sizes() -> dict[str, int]:
    return {name: p.numel() for name, p in model_of().named_parameters()}


def test_samples_are_the_elements_of_all_gradients_laid_end_to_end() -> None:
    kept, total = Kept(), sum(sizes().values())
    run(kept)
    flat = torch.cat([kept.gradients[name].flatten() for name in sizes()])
    where = torch.randperm(total, generator=torch.Generator().manual_seed(1))[:5000]
    where = torch.cat([where, torch.tensor([0, total - 1])])
    samples = Samples(where, sizes())
    run(samples)
    assert torch.equal(samples.values, flat[where])


def test_a_place_that_is_no_element_gets_zero() -> None:
    samples = Samples(torch.tensor([-1, sum(sizes().values()) + 7]), sizes())
    run(samples)
    assert samples.values.tolist() == [0.0, 0.0]


def test_samples_of_pieces_add_up() -> None:
    where = torch.arange(0, 8000, 37)
    whole, pieces = Samples(where, sizes()), Samples(where, sizes())
    run(whole)
    run(pieces, parts=2)
    torch.testing.assert_close(pieces.values, whole.values, rtol=1e-4, atol=1e-8)


def test_gradients_of_micro_batches_are_rounded_as_in_the_train_loop() -> None:
    model = build(SMALL, seed=5, dtype=torch.bfloat16)
    values = {name: p.detach() for name, p in model.named_parameters()}
    parts, kept, batch = len(IDS), Kept(), Batch(IDS, IDS)
    for part in batch.split(parts):
        (model(part.ids, labels=part.labels) / parts).backward()
    numerics = Numerics(torch.bfloat16, "cpu")
    plain_pass(values.__getitem__, SMALL, batch, numerics, kept, parts=parts, sums=1)
    for name, parameter in model.named_parameters():
        assert torch.equal(kept.gradients[name], parameter.grad), name
    assert kept.calls == len(values)
    # Each of two replicas adds up its own micro-batches; their gradients are averaged in float32.
    of_two = Kept()
    plain_pass(values.__getitem__, SMALL, batch, numerics, of_two, parts=parts, sums=2)
    assert of_two.calls == 2 * len(values)
    assert not torch.equal(of_two.gradients[name], kept.gradients[name])


def test_an_activity_sees_all_gradients_of_the_last_try() -> None:
    activity = Activity(SMALL.vocab_size)
    begun = Samples(torch.arange(10), sizes(), activity)
    run(begun)
    run(begun.again())
    shares = activity.asleep()
    assert {name for name in shares if name.endswith("up_proj.weight")}
    assert max(shares.values()) < 0.3


def test_a_model_without_layers_has_embedding_norm_and_head_and_a_loss_near_chance() -> None:
    kept = Kept()
    weights = dict(model_of().named_parameters())
    loss = plain_pass(
        lambda name: weights[name].detach(),
        without_layers(SMALL),
        Batch(IDS, IDS),
        Numerics(torch.float32, "cpu"),
        kept,
    )
    assert set(kept.gradients) == {
        "model.embed_tokens.weight",
        "model.norm.weight",
        "lm_head.weight",
    }
    assert loss == pytest.approx(math.log(SMALL.vocab_size), rel=0.1)


def test_with_masks_each_seed_drops_other_values_and_without_any_nothing_is_dropped() -> None:
    sizes = {"vocab_size": 64, "hidden_size": 16, "intermediate_size": 32, "sequence_length": 8}
    sizes |= {"num_hidden_layers": 1, "num_attention_heads": 2, "max_position_embeddings": 8}
    shape = BertShape(**sizes)
    values = {name: p.detach() for name, p in build(shape, 5, torch.float32).named_parameters()}
    batch, plain = make_batch(3, 2, shape), Numerics(torch.float32, "cpu")

    def passed(*masks: int, of: BertShape = shape, parts: int = 1) -> dict[str, Tensor]:
        kept = Kept()
        plain_pass(values.__getitem__, of, batch, plain, kept, masks=masks, parts=parts)
        return kept.gradients

    name = "bert.encoder.layer.0.intermediate.dense.weight"
    assert torch.equal(passed(1)[name], passed(1)[name])
    assert not torch.equal(passed(1)[name], passed(2)[name])
    assert not torch.equal(passed(1)[name], passed()[name])
    assert torch.equal(passed(1, of=replace(shape, dropout=0.0))[name], passed()[name])
    # Each share of the batch has a seed of its own.
    once, twice, other = (passed(*masks, parts=2)[name] for masks in ((1,), (1, 1), (1, 2)))
    assert not torch.equal(once, twice)
    assert not torch.equal(twice, other)
