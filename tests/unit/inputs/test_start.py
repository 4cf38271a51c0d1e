"""What a training starts from: random weights, and a last norm at which the softmax is sharp."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from llmb import workloads
from llmb.config import FP16, FP32, Mode, Parallelism, RunConfig, WeightsSource
from llmb.families import family_of
from llmb.inputs.start import start_gain, starts_sharp, values_of
from llmb.records import draws
from llmb.reference.data import make_batch
from llmb.reference.models import build, initial_value, model_of
from llmb.reference.recipe import OFFICIAL_OPTIMIZER
from llmb.reference.shapes import BertShape, Gpt2Shape, LlamaShape, Shape, UngatedLlamaShape
from tests.unit.builders_runtime import run_config

SIZES = {
    "vocab_size": 500,
    "hidden_size": 96,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "sequence_length": 64,
}
SHAPES: dict[str, Shape] = {
    "llama": LlamaShape(**SIZES, num_key_value_heads=4),
    "llama-ungated": UngatedLlamaShape(**SIZES, num_key_value_heads=2),
    "gpt2": Gpt2Shape(**SIZES),
    "bert": BertShape(**SIZES, dropout=0.0),
}
families = pytest.mark.parametrize("family", SHAPES)


def workload(family: str) -> workloads.Workload:
    return replace(workloads.WORKLOADS["llama-1.4b"], shape=SHAPES[family])


def started(family: str, config: RunConfig) -> torch.nn.Module:
    values = values_of(config, workload(family))
    return build(SHAPES[family], config.seed, torch.float32, values=values)


def logits_of(model: torch.nn.Module, shape: Shape) -> tuple[torch.Tensor, torch.Tensor]:
    """Return ids ``[B, T]`` and logits ``[B, T, V]``."""
    batch, kept = make_batch(5, 4, shape), []
    head = next(m for n, m in model.named_modules() if n.endswith(("lm_head", "decoder")))
    head.register_forward_hook(lambda _module, _inputs, out: kept.append(out.detach()))
    with torch.no_grad():
        model.eval()(batch.ids, labels=batch.labels, **batch.extra)
    return batch.ids, kept[0]


@families
def test_logits_of_the_first_step_have_a_deviation_of_about_two(family: str) -> None:
    _, logits = logits_of(started(family, run_config()), SHAPES[family])
    assert 1.7 < float(logits.std()) < 3.1
    _, logits = logits_of(started(family, run_config(constant_rate=True)), SHAPES[family])
    assert float(logits.std()) < 0.4


def test_a_token_of_a_tied_head_is_no_likelier_than_others() -> None:
    """Each state resembles the embedding of its token, and the head is that embedding."""
    own = {}
    for config in (run_config(), run_config(constant_rate=True)):
        ids, logits = logits_of(started("gpt2", config), SHAPES["gpt2"])
        mine = logits.gather(2, ids[:, :, None])
        own[config.constant_rate] = float((mine.mean() - logits.mean()) / logits.std())
    assert own[True] > 4
    assert abs(own[False]) < 0.5


@families
def test_only_the_gain_of_the_last_norm_differs_and_it_has_both_signs(family: str) -> None:
    shape, config = SHAPES[family], run_config()
    value = values_of(config, workload(family))
    assert value is not None
    names = {}
    with torch.device("meta"):
        names = {n: p.shape for n, p in model_of(shape).named_parameters()}
    assert family_of(shape).last_norm in names
    for name, size in names.items():
        plain, first = initial_value(name, size, config.seed, shape), value(name, size)
        if name == family_of(shape).last_norm:
            gain = start_gain(shape)
            assert torch.equal(first.abs(), plain * gain)
            assert 0.2 < float((first < 0).float().mean()) < 0.8
        else:
            assert torch.equal(first, plain), name
    norm = (family_of(shape).last_norm, names[family_of(shape).last_norm])
    other = values_of(run_config(seed=8), workload(family))
    assert other is not None
    assert torch.equal(value(*norm), value(*norm))
    assert not torch.equal(value(*norm), other(*norm))


@pytest.mark.parametrize(
    "changes",
    [{"constant_rate": True}, {"mode": Mode.FORWARD}, {"mode": Mode.GENERATE}],
    ids=["constant-rate", "forward", "generate"],
)
def test_other_runs_start_from_plain_weights(changes: dict[str, object]) -> None:
    assert values_of(run_config(**changes), workload("llama")) is None


def test_a_checkpoints_weights_stay_as_they_are() -> None:
    source = WeightsSource(path="/nowhere", sha256="a" * 64)
    assert not starts_sharp(run_config(weights=source), OFFICIAL_OPTIMIZER, 10**9, 0.0)
    assert starts_sharp(run_config(), OFFICIAL_OPTIMIZER, 10**9, 0.0)


@pytest.mark.parametrize(
    ("name", "changes", "sharp"),
    [
        ("gpt2-125m", {}, True),
        ("gpt2-125m", {"precision": FP16}, False),
        ("llama-45m", {"precision": FP16}, True),
        ("gpt2-1.5b", {"parallelism": Parallelism(dp_shard=2), "precision": FP32}, False),
        ("nemo-bert-base", {}, False),
        ("litgpt-train", {}, False),
    ],
    ids=["drawn", "no ledger", "no ledger, a small rate", "too large", "dropout", "SGD"],
)
def test_a_start_is_sharp_where_rates_are_drawn_or_small(
    name: str, changes: dict[str, object], sharp: bool
) -> None:
    found = values_of(run_config(workload=name, **changes), workloads.WORKLOADS[name])
    assert (found is not None) is sharp


@pytest.mark.parametrize(
    ("hidden", "gain"), [(64, 14), (400, 6), (800, 4), (1600, 3), (3200, 2), (16384, 1)]
)
def test_the_gain_is_a_whole_number_that_follows_from_the_width(hidden: int, gain: int) -> None:
    assert start_gain(replace(LlamaShape(), hidden_size=hidden)) == gain


def test_no_workload_whose_rate_is_drawn_starts_with_a_softmax_that_is_flat() -> None:
    drawn = [w for w in workloads.WORKLOADS.values() if draws.varies(w.recipe.optimizer)]
    assert len(drawn) > 4
    for one in drawn:
        shape = one.shape
        deviation = start_gain(shape) * shape.initializer_range * shape.hidden_size**0.5
        assert deviation > 1.5, one.name  # the least: 1.6 of nanotron-llama2-7b
        assert deviation < 2.9 or start_gain(shape) == 1, one.name
