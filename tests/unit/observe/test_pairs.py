"""The probe ``pairs``: what is equal in exact arithmetic differs where one product is narrow."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from llmb.observe.pairs import Pairs
from llmb.observe.pairs_layout import obstacle
from llmb.records.precision_recipe import FORWARD, INPUT, PV, QK, WEIGHT, PairSeen
from llmb.reference.data import Batch
from llmb.reference.loss import IGNORED
from llmb.reference.models import model_of
from llmb.reference.shapes import BertShape, Gpt2Shape, LlamaShape
from llmb.workloads.table import WORKLOADS
from tests.narrow_product import KINDS, PROJECTIONS
from tests.unit.builders_pairs import BERT, GPT2, QWEN3, TIED_QWEN3, UNGATED, seen

SHAPE = LlamaShape(**vars(UNGATED))
#: Between FP32 (2^-18 at most) and FP8 (2^-7 at least).
LEAST = 2.0**-12


def narrow_ones(pairs: tuple[PairSeen, ...]) -> set[tuple[str, str, int]]:
    return {(p.product, p.direction, p.layer) for p in pairs if not p.difference < LEAST * p.length}


def test_in_a_float32_model_nothing_that_should_be_equal_differs() -> None:
    assert narrow_ones(seen(SHAPE)) == set()


def test_every_product_of_the_projections_is_looked_at_in_each_layer() -> None:
    looked = {(p.product, p.direction, p.layer) for p in seen(SHAPE)}
    each = [
        (k, way, n) for k in PROJECTIONS[:-1] for way in (FORWARD, INPUT, WEIGHT) for n in (0, 1)
    ]
    assert looked == {
        *each,
        *(("head", way, 0) for way in (FORWARD, INPUT, WEIGHT)),
        *((kind, FORWARD, n) for kind in (QK, PV) for n in (0, 1)),
    }


@pytest.mark.parametrize("kind", KINDS)
def test_where_one_kind_of_product_is_in_fp8_its_pairs_differ_and_no_others(kind: str) -> None:
    layers = (0,) if kind == "head" else (0, 1)
    ways = (FORWARD,) if kind in (QK, PV) else (FORWARD, INPUT, WEIGHT)
    expected = {(kind, way, n) for way in ways for n in layers}
    if kind == "o":  # the values are looked at through its weight gradient
        expected |= {(PV, FORWARD, n) for n in layers}
    assert narrow_ones(seen(SHAPE, kind)) == expected


@pytest.mark.parametrize("shape", [QWEN3, TIED_QWEN3])
def test_of_normed_queries_and_a_head_that_is_the_only_embedding_nothing_differs(shape) -> None:
    pairs = seen(shape)
    assert narrow_ones(pairs) == set()
    assert {p.product for p in pairs} == set(KINDS)
    assert all(p.length > 0 for p in pairs)


@pytest.mark.parametrize("kind", ["q", "k", "head", QK])
def test_of_normed_queries_each_product_in_fp8_is_told_by_its_own_pairs(kind: str) -> None:
    layers = (0,) if kind == "head" else (0, 1)
    ways = (FORWARD,) if kind == QK else (FORWARD, INPUT, WEIGHT)
    expected = {(kind, way, n) for way in ways for n in layers}
    assert narrow_ones(seen(TIED_QWEN3, kind)) == expected


@pytest.mark.parametrize("way", [FORWARD, INPUT, WEIGHT])
@pytest.mark.parametrize("kind", ["q", "o", "down", "head"])
def test_each_direction_of_a_product_is_told_apart(kind: str, way: str) -> None:
    found = narrow_ones(seen(SHAPE, kind, ways=(way,)))
    covered = {(PV, FORWARD)} if (kind, way) == ("o", WEIGHT) else set()
    assert {(product, direction) for product, direction, _ in found} == {(kind, way)} | covered


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("shape", [SHAPE, UNGATED, GPT2, BERT, QWEN3, TIED_QWEN3])
def test_the_weights_of_the_probe_are_exact_in_the_runs_own_type(shape, dtype: str) -> None:
    probe = Pairs(shape, 4, dtype)
    for name, parameter in model_of(shape).named_parameters():
        value = probe.weight(name, parameter)
        assert torch.equal(value.to(getattr(torch, dtype)).float(), value), name


@pytest.mark.parametrize("shape", [SHAPE, UNGATED, GPT2, BERT])
def test_gains_are_one_and_biases_zero_whatever_they_were(shape) -> None:
    probe = Pairs(shape, 4, "float32")
    for name, parameter in model_of(shape).named_parameters():
        if parameter.dim() == 1 and "transform.LayerNorm.weight" not in name:
            value = probe.weight(name, torch.full_like(parameter, 7.0))
            assert set(value.tolist()) == {0.0 if name.endswith(".bias") else 1.0}, name


@pytest.mark.parametrize("shape", [GPT2, BERT])
def test_every_matrix_takes_means_of_zero_and_gives_them(shape) -> None:
    probe = Pairs(shape, 4, "float32")
    silent = ("token_type_embeddings", "pooler", "seq_relationship")
    for name, parameter in model_of(shape).named_parameters():
        if parameter.dim() == 2:
            axis = 0 if name.endswith(("c_proj.weight", "output.dense.weight")) else 1
            value = probe.weight(name, parameter)
            assert not value.sum(axis).any(), name
            assert value.any() == (not any(one in name for one in silent)), name


def of_bert(dtype: str = "float32") -> tuple[torch.nn.Module, Batch]:
    model, probe = model_of(BERT).eval(), Pairs(BERT, 4, dtype)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(probe.weight(name, parameter))
    return model, probe.batch()


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_berts_head_is_given_what_its_transform_was(dtype: str) -> None:
    model, batch = of_bert(dtype)
    shown = {}
    for name in ("bert.encoder.ln", "cls.predictions.transform"):
        model.get_submodule(name).register_forward_hook(
            lambda _m, _i, out, name=name: shown.update({name: out.detach()})
        )
    model(batch.ids, batch.labels, *batch.extra.values())
    given, made = shown.values()
    half = BERT.hidden_size // 2
    read = slice(0, 2)  # channels that the head reads with opposite signs
    ratio = (made[..., read] - made[..., half : half + 2]) / (2 * given[..., read])
    assert ((ratio > 0.5) & (ratio < 2)).all()


def test_the_sentence_order_of_bert_moves_nothing_but_its_own_bias() -> None:
    model, batch = of_bert()
    gradients = []
    for order in (None, batch.extra["next_sentence_label"]):
        model.zero_grad()
        types = batch.extra["token_type_ids"]
        model(batch.ids, batch.labels, types, order).backward()
        gradients.append({n: p.grad for n, p in model.named_parameters() if p.grad is not None})
    without, all_of_it = gradients
    moved = {n for n, g in all_of_it.items() if g.any() and not torch.equal(g, without.get(n, -g))}
    assert moved == {"cls.seq_relationship.bias"}


def test_other_seeds_have_other_weights() -> None:
    name, like = "model.layers.0.mlp.up_proj.weight", torch.empty(128, 192)
    one, other = (Pairs(SHAPE, seed, "float32").weight(name, like) for seed in (1, 2))
    assert not torch.equal(one, other)


def test_a_model_with_four_heads_shows_queries_and_scores_in_alternate_layers() -> None:
    shape = replace(SHAPE, num_attention_heads=4, num_key_value_heads=4)
    layers = {p.product: set() for p in seen(shape)}
    for pair in seen(shape):
        if pair.direction == FORWARD:
            layers[pair.product].add(pair.layer)
    assert (layers["q"], layers["k"], layers[QK]) == ({0}, {0}, {1})


@pytest.mark.parametrize(("keys", "layers"), [(2, 4), (3, 2), (6, 1)])
def test_where_query_heads_share_keys_enough_layers_show_every_product(keys, layers) -> None:
    shape = replace(
        SHAPE, num_attention_heads=12, num_key_value_heads=keys, num_hidden_layers=layers
    )
    looked = {(p.product, p.direction) for p in seen(shape)}
    assert looked == {
        *((kind, way) for kind in PROJECTIONS for way in (FORWARD, INPUT, WEIGHT)),
        (QK, FORWARD),
        (PV, FORWARD),
    }


def test_where_all_query_heads_share_one_key_head_what_needs_two_is_left_out() -> None:
    shape = replace(SHAPE, num_key_value_heads=1)
    looked = {(p.product, p.direction) for p in seen(shape)}
    assert narrow_ones(seen(shape)) == set()
    left = {(kind, way) for kind in "qk" for way in (FORWARD, INPUT)} | {(QK, FORWARD)}
    assert not looked & left
    assert {("q", WEIGHT), ("v", FORWARD), (PV, FORWARD)} < looked


@pytest.mark.parametrize(
    ("shape", "words"),
    [
        (BertShape(hidden_size=96, num_hidden_layers=2, num_attention_heads=4), "too few hidden"),
        (Gpt2Shape(num_attention_heads=2), "attention heads: 2"),
        (replace(SHAPE, hidden_size=60), "too few"),
    ],
)
def test_of_a_model_for_which_the_probe_is_not_made_it_says_why(shape, words: str) -> None:
    assert words in (obstacle(shape) or "")


def test_a_deep_and_narrow_model_shows_input_gradients_in_every_second_layer() -> None:
    shape = replace(GPT2, num_hidden_layers=8)
    pairs = seen(shape)
    assert narrow_ones(pairs) == set()
    found = [p for p in pairs if p.product == "attn.c_attn"]
    assert {p.layer for p in found if p.direction == INPUT} == {0, 2, 4, 6}
    assert {p.layer for p in found if p.direction == FORWARD} == set(range(8))


def test_it_is_made_for_every_workload() -> None:
    every = WORKLOADS.values()
    assert {w.name: why for w in every if (why := obstacle(w.shape)) is not None} == {}


@pytest.mark.parametrize(("length", "targets"), [(24, 24), (48, 32), (512, 76)])
def test_bert_is_asked_for_as_many_words_as_in_training_or_32(length: int, targets: int) -> None:
    shape = replace(BERT, sequence_length=length, max_position_embeddings=length)
    batch = Pairs(shape, 4, "float32").batch()
    words = batch.labels[batch.labels != IGNORED]
    assert len(words) == targets
    # Words of the upper half show what the head does: none of them is in the input or asked for.
    assert max(int(words.max()), int(batch.ids.max())) < shape.vocab_size // 2
