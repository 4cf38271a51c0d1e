"""Under the probes one pass shows every branch by itself: what is wrong in one shows there only."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import cache

import pytest
import torch
from torch import Tensor, nn

from llmb.audit.distance import gaps
from llmb.families import family_of
from llmb.formats import class_of
from llmb.observe import probes
from llmb.observe.passes import Sketches
from llmb.observe.probes import BRANCHES, HEAD, PROBES
from llmb.reference.data import make_batch
from llmb.reference.formats import _Emulated
from llmb.reference.models import build
from llmb.reference.shapes import LlamaShape

SHAPE = LlamaShape(
    vocab_size=509,
    hidden_size=96,
    intermediate_size=128,
    num_hidden_layers=3,
    num_attention_heads=4,
    num_key_value_heads=4,
    sequence_length=24,
)
OUTS, GAIN = probes.parts(SHAPE).out, family_of(SHAPE).last_norm
(EMBEDDING,) = probes.parts(SHAPE).embeddings


# -- channels -------------------------------------------------------------------------------


def test_out_projections_are_the_last_matrix_of_each_branch_in_the_models_order() -> None:
    model = build(replace(SHAPE, num_hidden_layers=2), 1, torch.float32)
    names = [n for n, _ in model.named_parameters() if "o_proj" in n or "down_proj" in n]
    assert list(probes.parts(replace(SHAPE, num_hidden_layers=2)).out) == names


@pytest.mark.parametrize(("hidden", "layers"), [(96, 3), (3200, 12), (64, 2), (100, 7), (24, 6)])
def test_every_branch_has_channels_of_its_own_and_half_of_all_are_nobodys(
    hidden: int, layers: int
) -> None:
    shape = replace(SHAPE, hidden_size=hidden, num_hidden_layers=layers)
    own = probes.channels(shape)
    assert list(own) == list(probes.parts(shape).out)
    taken = [channel for one in own.values() for channel in range(hidden)[one.slice]]
    assert len(taken) == len(set(taken)) == 2 * layers * (hidden // (4 * layers))
    assert len(taken) <= hidden / 2
    assert max(taken) == hidden - 1


def test_where_there_are_too_few_channels_no_branch_has_any() -> None:
    assert probes.channels(replace(SHAPE, hidden_size=20, num_hidden_layers=6)) == {}


# -- edits ----------------------------------------------------------------------------------


def random(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize(("dtype", "faint"), [("bfloat16", 2**-12), ("float32", 2**-12)])
def test_an_out_projection_keeps_its_own_rows_faintly_and_no_others(
    dtype: str, faint: float
) -> None:
    value = random(96, 128)
    edits = probes.edits(BRANCHES, SHAPE, dtype)
    assert set(edits) == {*OUTS, EMBEDDING, GAIN}
    for name, own in probes.channels(SHAPE).items():
        found = edits[name](value)
        assert torch.equal(found[own.slice], value[own.slice] * faint)
        assert found.count_nonzero() == own.width * 128
    assert torch.equal(value, random(96, 128)), "an edit leaves what it is given as it was"


def test_the_embedding_writes_into_no_branchs_channels() -> None:
    found = probes.edits(BRANCHES, SHAPE, "bfloat16")[EMBEDDING](random(509, 96))
    free = min(own.first for own in probes.channels(SHAPE).values())
    assert torch.equal(found[:, :free], random(509, 96)[:, :free])
    assert found[:, free:].count_nonzero() == 0


def test_where_branches_have_no_channels_their_matrices_are_only_made_faint() -> None:
    shape = replace(SHAPE, hidden_size=20, num_hidden_layers=6)
    edits = probes.edits(BRANCHES, shape, "bfloat16")
    assert set(edits) == {*probes.parts(shape).out, GAIN}
    assert torch.equal(edits[OUTS[0]](random(20, 8)), random(20, 8) * 2**-12)


@pytest.mark.parametrize("probe", PROBES)
def test_a_probe_is_the_same_whatever_gain_the_last_norm_has(probe: str) -> None:
    edit = probes.edits(probe, SHAPE, "bfloat16")[GAIN]
    assert torch.equal(edit(torch.ones(96)), edit(random(96) * 14))


def test_in_the_head_probe_branches_are_silent_and_logits_have_a_deviation_of_about_four() -> None:
    edits = probes.edits(HEAD, SHAPE, "bfloat16")
    assert set(edits) == {*OUTS, GAIN}
    assert all(edits[name](random(4, 4)).count_nonzero() == 0 for name in OUTS)
    model = edited(HEAD, torch.float32)
    logits = model(tokens(HEAD))
    assert 4 / math.sqrt(2) < float(logits.detach().std()) < 4 * math.sqrt(2) * 1.1


@pytest.mark.parametrize("hidden", [96, 256, 3200])
def test_the_gain_of_the_head_probe_is_a_power_of_two(hidden: int) -> None:
    edits = probes.edits(HEAD, replace(SHAPE, hidden_size=hidden), "bfloat16")
    gain = edits[GAIN](torch.ones(3)).tolist()[0]
    assert math.log2(gain) % 1 == 0
    assert 2 / math.sqrt(2) <= gain * 0.02 * math.sqrt(hidden) / 2 <= 2 * math.sqrt(2)


@pytest.mark.parametrize("probe", PROBES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_edits_are_exact_in_sixteen_bits(probe: str, dtype: torch.dtype) -> None:
    model = build(SHAPE, 1, dtype)
    weights = dict(model.named_parameters())
    for name, edit in probes.edits(probe, SHAPE, str(dtype).removeprefix("torch.")).items():
        value = weights[name].detach()
        assert torch.equal(edit(value).double(), edit(value.double())), name


def test_tokens_of_probes_follow_from_the_seed_and_differ_between_probes() -> None:
    seeds = {probes.token_seed(seed, name) for seed in (1, 2) for name in PROBES}
    assert len(seeds) == 4
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert probes.token_seed(1, HEAD) == probes.token_seed(1, HEAD)


# -- isolation ------------------------------------------------------------------------------


def tokens(probe: str) -> Tensor:
    seed = probes.token_seed(4, probe)
    return make_batch(seed, 1, SHAPE).ids


def edited(probe: str, dtype: torch.dtype) -> nn.Module:
    """Return a model whose weights are those of 16 bits under ``probe``, computing in ``dtype``."""
    model = build(SHAPE, 7, torch.bfloat16).to(dtype)
    with torch.no_grad():
        for name, edit in probes.edits(probe, SHAPE, "bfloat16").items():
            parameter = model.get_parameter(name)
            parameter.copy_(edit(parameter))
    return model


def shown(dtype: torch.dtype, cheat: Callable[[nn.Module], object] | None = None):
    found = {}
    for probe in PROBES:
        model, sketches, ids = edited(probe, dtype), Sketches(probe, 4, SHAPE), tokens(probe)
        if cheat is not None:
            cheat(model)
        model(ids, labels=ids).backward()
        for name, parameter in model.named_parameters():
            sketches.add(name, parameter.grad)
        found |= {name: tensor.tolist() for name, tensor in sketches.tensors.items()}
    return found


@cache
def reference():
    # As the verifier computes it: a silent model needs no layers in the probe of the head.
    every = shown(torch.float64)
    return {n: a for n, a in every.items() if not n.startswith(f"{HEAD}/model.layers")}


def bits(arrays) -> dict[str, float]:
    return {
        f"{probe}/{name}": one.bits
        for probe in PROBES
        for name, one in gaps(arrays, reference(), f"{probe}/").items()
    }


@cache
def honest() -> dict[str, float]:
    return bits(shown(torch.bfloat16))


def lost(cheat: Callable[[nn.Module], object]) -> dict[str, float]:
    """Return by item how many bits a cheat costs."""
    found = bits(shown(torch.bfloat16, cheat))
    return {item: value - found[item] for item, value in honest().items()}


FP8 = class_of("FP8", None).format


def in_fp8(matrix: str) -> Callable[[nn.Module], object]:
    """Return a post-processing that computes one matrix in FP8, forward and backward."""

    def cheat(model: nn.Module) -> None:
        owner, _, last = matrix.rpartition(".")
        linear = model.get_submodule(matrix)
        emulated = _Emulated(linear, FP8)
        setattr(model.get_submodule(owner), last, emulated)

    return cheat


def branch_of(item: str) -> str | None:
    """Return such as ``layers.1.mlp``, None for embedding, final norm and head themselves."""
    name = item.replace("input_layernorm", "self_attn").replace("post_attention_layernorm", "mlp")
    parts = name.split(".")
    return ".".join(parts[parts.index("layers") :][:3]) if "layers" in parts else None


def test_an_honest_run_in_sixteen_bits_has_at_least_six_bits_in_every_part() -> None:
    assert min(honest().values()) > 6
    assert len(honest()) == 3 + 9 * 3 + 6 + 3, "every parameter, each branch's output, and the head"


@pytest.mark.parametrize(
    "matrix",
    [
        "model.layers.1.mlp.up_proj",
        "model.layers.1.mlp.gate_proj",
        "model.layers.2.mlp.down_proj",
        "model.layers.0.self_attn.v_proj",
        "model.layers.1.self_attn.q_proj",
        "model.layers.2.self_attn.o_proj",
    ],
)
def test_one_matrix_in_fp8_costs_bits_in_its_own_branch_and_nowhere_else(matrix: str) -> None:
    cost = lost(in_fp8(matrix))
    own = branch_of(f"{matrix}.weight")
    mine = {item: bits for item, bits in cost.items() if branch_of(item) == own}
    others = {item: bits for item, bits in cost.items() if branch_of(item) != own}
    assert max(mine.values()) > 1.5, mine
    assert max(others.values()) < 0.5, others
    assert max(cost, key=lambda item: cost[item]) in mine


@pytest.mark.parametrize("layer", [0, 2])
@pytest.mark.parametrize("branch", ["self_attn", "mlp"])
def test_a_branch_that_is_left_out_has_no_bits_left(layer: int, branch: str) -> None:
    def cheat(model: nn.Module) -> None:
        module = getattr(model.model.layers[str(layer)], branch)
        plain = module.forward
        module.forward = lambda *given: plain(*given) * 0

    cost = bits(shown(torch.bfloat16, cheat))
    mine = [value for item, value in cost.items() if branch_of(item) == f"layers.{layer}.{branch}"]
    assert max(mine) <= 0.01


def test_the_head_in_fp8_shows_in_the_head_probe() -> None:
    cost = lost(in_fp8("lm_head"))
    assert max(value for item, value in cost.items() if item.startswith("head/")) > 1.5


def test_a_tenth_of_a_feed_forwards_columns_dropped_shows_in_its_branch_alone() -> None:
    def cheat(model: nn.Module) -> None:
        mlp = model.model.layers["1"].mlp
        plain = mlp.down_proj.forward
        mask = torch.ones(SHAPE.intermediate_size, dtype=torch.bfloat16)
        mask[::10] = 0
        mlp.down_proj.forward = lambda x: plain(x * mask)

    cost = lost(cheat)
    assert max(v for item, v in cost.items() if branch_of(item) == "layers.1.mlp") > 3
    assert max(v for item, v in cost.items() if branch_of(item) != "layers.1.mlp") < 0.5
