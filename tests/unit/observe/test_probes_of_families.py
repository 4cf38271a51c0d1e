"""The probes of models whose heads are embeddings: what cheats shows by itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache

import pytest
import torch
from torch import nn

from llmb.audit.distance import gaps
from llmb.formats import class_of
from llmb.observe import probes
from llmb.observe.passes import Numerics, Sketches, copies_of, plain_pass, without_layers
from llmb.observe.probes import BRANCHES, HEAD, PROBES
from llmb.reference import formats
from llmb.reference.data import make_batch
from llmb.reference.head import TiedHead
from llmb.reference.loss import IGNORED
from llmb.reference.models import build
from llmb.reference.qwen3_shape import TiedQwen3Shape
from llmb.reference.shapes import BertShape, Gpt2Shape, Shape

GPT2 = Gpt2Shape(
    vocab_size=509,
    hidden_size=96,
    intermediate_size=128,
    num_hidden_layers=3,
    num_attention_heads=4,
    sequence_length=24,
)
BERT = BertShape(
    vocab_size=509,
    hidden_size=96,
    intermediate_size=128,
    num_hidden_layers=3,
    num_attention_heads=4,
    sequence_length=48,
)
QWEN3 = TiedQwen3Shape(
    vocab_size=509,
    hidden_size=96,
    intermediate_size=128,
    num_hidden_layers=3,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=32,
    sequence_length=24,
)
SHAPES: dict[str, Shape] = {"gpt2": GPT2, "bert": BERT, "qwen3": QWEN3}
BLOCKS = {name: shape.blocks for name, shape in SHAPES.items()}
Cheat = Callable[[nn.Module], object]


BF16, FP16 = torch.bfloat16, torch.float16


def shown(
    family: str, dtype: torch.dtype, cheat: Cheat | None = None, run: torch.dtype = BF16
) -> dict[str, list[float]]:
    """Return what the probes of a ``run``'s type show of a model in ``dtype``, post-processed."""
    shape = SHAPES[family]
    name_of_type = str(run).removeprefix("torch.")
    found: dict[str, list[float]] = {}
    for probe in PROBES:
        model = build(shape, 7, run).to(dtype).eval()
        with torch.no_grad():
            for name, edit in probes.edits(probe, shape, name_of_type).items():
                parameter = model.get_parameter(name)
                parameter.copy_(edit(parameter))
        if cheat is not None:
            cheat(model)
        sketches, batch = Sketches(probe, 4, shape), probes.batch(4, probe, shape)
        model(batch.ids, labels=batch.labels, **batch.extra).backward()
        for name, parameter in model.named_parameters():
            if parameter.grad is not None:
                sketches.add(name, parameter.grad)
        found |= {name: tensor.tolist() for name, tensor in sketches.tensors.items()}
    return found


@cache
def reference(family: str, run: torch.dtype) -> dict[str, list[float]]:
    every = shown(family, torch.float64, run=run)
    return {n: a for n, a in every.items() if not n.startswith(f"{HEAD}/{BLOCKS[family]}")}


def bits(family: str, arrays: dict[str, list[float]], run: torch.dtype = BF16) -> dict[str, float]:
    return {
        f"{probe}/{name}": one.bits
        for probe in PROBES
        for name, one in gaps(arrays, reference(family, run), f"{probe}/").items()
    }


@cache
def honest(family: str, run: torch.dtype = BF16) -> dict[str, float]:
    return bits(family, shown(family, run, run=run), run)


def lost(family: str, cheat: Cheat, run: torch.dtype = BF16) -> dict[str, float]:
    """Return by item how many bits a cheat costs."""
    found = bits(family, shown(family, run, cheat, run), run)
    return {item: value - found[item] for item, value in honest(family, run).items()}


FP8 = class_of("FP8", None).format


def in_fp8(matrix: str) -> Cheat:
    def cheat(model: nn.Module) -> None:
        owner, _, last = matrix.rpartition(".")
        linear = model.get_submodule(matrix)
        new = (
            formats._EmulatedHead(FP8)
            if isinstance(linear, TiedHead)
            else formats._Emulated(linear, FP8)
        )
        setattr(model.get_submodule(owner), last, new)

    return cheat


@pytest.mark.parametrize("family", SHAPES)
def test_every_parameter_but_a_keys_bias_has_a_gradient_that_can_be_compared(family: str) -> None:
    names = {n for n, _ in build(SHAPES[family], 1, torch.float32).named_parameters()}
    there = {item.removeprefix("branches/") for item in honest(family)}
    assert names - there == {n for n in names if n.endswith("attention.self.key.bias")}


@pytest.mark.parametrize(("run", "least"), [(BF16, 4.5), (FP16, 6.0)])
@pytest.mark.parametrize("family", SHAPES)
def test_an_honest_run_in_sixteen_bits_has_bits_left_in_every_part(
    family: str, run: torch.dtype, least: float
) -> None:
    found = honest(family, run)
    assert min(found.values()) > least, sorted(found.items(), key=lambda item: item[1])[:9]


@pytest.mark.parametrize(("probe", "length", "least"), [(BRANCHES, 24, 7.0), (HEAD, 256, 9.0)])
def test_an_honest_run_in_fp16_has_bits_left_with_many_words(
    probe: str, length: int, least: float
) -> None:
    # A softmax over so many equal words overflows, and gradients of a mean underflow.
    shape = replace(QWEN3, vocab_size=151_936, sequence_length=length)
    model, batch = build(shape, 7, FP16), probes.batch(4, probe, shape)
    edits = probes.edits(probe, shape, "float16")
    weights = {n: edits.get(n, torch.clone)(p.detach()) for n, p in model.named_parameters()}
    told = without_layers(shape) if probe == HEAD else shape

    def shown(dtype: torch.dtype, copies: int) -> dict[str, list[float]]:
        sketches, numerics = Sketches(probe, 4, shape), Numerics(dtype, "cpu")
        plain_pass(weights.__getitem__, told, batch, numerics, sketches, copies=copies)
        return {name: tensor.tolist() for name, tensor in sketches.tensors.items()}

    found = gaps(shown(FP16, copies_of(batch, "float16")), shown(torch.float32, 1), f"{probe}/")
    assert min(one.bits for one in found.values()) > least


def test_the_head_probe_of_few_tokens_has_all_of_them_as_targets() -> None:
    shape = replace(BERT, sequence_length=16)
    masked = make_batch(probes.token_seed(4, HEAD), 1, shape)
    batch = probes.batch(4, HEAD, shape)
    told = masked.labels != IGNORED
    assert 0 < told.sum() < 16
    assert (batch.labels != IGNORED).all()
    assert torch.equal(batch.labels[told], masked.labels[told])
    assert torch.equal(batch.ids, masked.ids)
    many = replace(BERT, sequence_length=512)
    assert torch.equal(
        probes.batch(4, HEAD, many).labels,
        make_batch(probes.token_seed(4, HEAD), 1, many).labels,
    )


@pytest.mark.parametrize(
    ("family", "matrix", "own"),
    [
        ("gpt2", "transformer.h.1.mlp.c_fc", ".h.1."),
        ("gpt2", "transformer.h.2.mlp.c_proj", ".h.2."),
        ("gpt2", "transformer.h.0.attn.c_attn", ".h.0."),
        ("gpt2", "transformer.h.1.attn.c_proj", ".h.1."),
        ("bert", "bert.encoder.layer.1.intermediate.dense", ".layer.1."),
        ("bert", "bert.encoder.layer.2.output.dense", ".layer.2."),
        ("bert", "bert.encoder.layer.0.attention.self.value", ".layer.0."),
        ("bert", "bert.encoder.layer.1.attention.output.dense", ".layer.1."),
        ("qwen3", "model.layers.0.self_attn.q_proj", ".layers.0."),
        ("qwen3", "model.layers.1.mlp.gate_proj", ".layers.1."),
    ],
)
def test_one_matrix_in_fp8_costs_bits_in_its_own_layer_and_nowhere_else(
    family: str, matrix: str, own: str
) -> None:
    cost = lost(family, in_fp8(matrix))
    mine = {item: bits for item, bits in cost.items() if own in item}
    others = {item: bits for item, bits in cost.items() if own not in item}
    assert max(mine.values()) > 1.5, mine
    assert max(others.values()) < 0.75, others


@pytest.mark.parametrize(
    ("family", "head"),
    [
        ("gpt2", "lm_head"),
        ("bert", "cls.predictions.decoder"),
        ("bert", "cls.predictions.transform.dense"),
        ("qwen3", "lm_head"),
    ],
)
def test_what_makes_the_logits_in_fp8_shows_in_the_head_probe(family: str, head: str) -> None:
    cost = lost(family, in_fp8(head))
    assert max(value for item, value in cost.items() if item.startswith("head/")) > 1.5


@pytest.mark.parametrize(
    ("family", "branch"),
    [
        ("gpt2", "transformer.h.0.attn"),
        ("gpt2", "transformer.h.2.mlp"),
        ("bert", "bert.encoder.layer.0.attention"),
        ("qwen3", "model.layers.0.self_attn"),
    ],
)
def test_a_branch_that_is_left_out_has_no_bits_left(family: str, branch: str) -> None:
    def cheat(model: nn.Module) -> None:
        module = model.get_submodule(branch)
        plain = module.forward
        module.forward = lambda *given: plain(*given) * 0

    found = bits(family, shown(family, torch.bfloat16, cheat))
    # The gradient of the last bias has nothing to do with what the branch puts out.
    biases = {f"branches/{name}" for name in probes.parts(SHAPES[family]).biases}
    mine = {item: value for item, value in found.items() if f"{branch}." in item}
    assert {item for item, value in mine.items() if value > 0.5} <= biases


@pytest.mark.parametrize("run", [BF16, FP16])
@pytest.mark.parametrize(
    ("family", "out"),
    [
        ("gpt2", "transformer.h.1.mlp.c_proj"),
        ("gpt2", "transformer.h.0.attn.c_proj"),
        ("bert", "bert.encoder.layer.2.output.dense"),
        ("bert", "bert.encoder.layer.0.attention.output.dense"),
        ("qwen3", "model.layers.1.mlp.down_proj"),
    ],
)
def test_an_out_projection_that_is_wrong_in_its_forward_product_alone_shows_in_what_it_puts_out(
    family: str, out: str, run: torch.dtype
) -> None:
    def cheat(model: nn.Module) -> None:
        module = model.get_submodule(out)
        plain = module.forward

        def rounded(value: torch.Tensor) -> torch.Tensor:
            return formats.round_to(value, FP8.forward)

        def forward(x: torch.Tensor) -> torch.Tensor:
            right = plain(x)
            wrong = nn.functional.linear(rounded(x), rounded(module.weight), module.bias)
            return right + (wrong - right).detach()

        module.forward = forward

    cost = lost(family, cheat, run)
    own, layer = f"branches/out/{out}.weight", out.removeprefix(BLOCKS[family]).split(".")[1]
    others = {n: v for n, v in cost.items() if BLOCKS[family] in n and f".{layer}." not in n}
    assert cost[own] > (1.0 if run == BF16 else 4.0)
    # In FP16 branches are as loud as what they are added to, and what is wrong in one shows in all.
    assert run == FP16 or max(others.values()) < 0.75, others
