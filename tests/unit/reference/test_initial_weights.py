"""What a model starts from: a function of the seed and the parameter's name, made in float32."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest
import torch

from llmb.reference import models
from llmb.reference.llama import Llama
from llmb.reference.models import build, initial_value
from llmb.reference.shapes import LlamaShape


def same_bits(one: Llama, other: Llama) -> bool:
    values = other.state_dict()
    return all(torch.equal(value, values[name]) for name, value in one.state_dict().items())


def test_the_same_seed_gives_the_same_bits(shape: LlamaShape, model: Llama) -> None:
    assert same_bits(build(shape, seed=1, dtype=torch.float32), model)


def test_another_seed_changes_every_matrix(shape: LlamaShape, model: Llama) -> None:
    other = dict(build(shape, seed=2, dtype=torch.float32).named_parameters())
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, other[name]) == name.endswith("norm.weight"), name


def test_no_two_matrices_of_a_model_start_alike(model: Llama) -> None:
    starts = [tuple(p.flatten()[-8:].tolist()) for p in model.parameters() if p.dim() == 2]
    assert len(set(starts)) == len(starts)


def test_the_order_in_which_threads_finish_changes_nothing(
    shape: LlamaShape, model: Llama, monkeypatch: pytest.MonkeyPatch
) -> None:
    delays = iter([0.05, 0.0, 0.02, 0.0] * 100)

    def late(*arguments: object) -> torch.Tensor:
        time.sleep(next(delays))
        return initial_value(*arguments)

    monkeypatch.setattr(models, "initial_value", late)
    assert same_bits(build(shape, seed=1, dtype=torch.float32), model)


def test_the_global_random_state_is_neither_read_nor_moved(shape: LlamaShape, model: Llama) -> None:
    torch.manual_seed(123)
    before = torch.get_rng_state()
    built = build(shape, seed=1, dtype=torch.float32)
    assert torch.equal(torch.get_rng_state(), before)
    assert same_bits(built, model)


def test_a_parameter_made_alone_equals_the_one_in_the_model(
    shape: LlamaShape, model: Llama
) -> None:
    for name, parameter in model.named_parameters():
        assert torch.equal(initial_value(name, parameter.shape, 1, shape), parameter), name


def test_matrices_are_normal_with_standard_deviation_0_02() -> None:
    shape = LlamaShape(vocab_size=500, hidden_size=400, num_hidden_layers=1)
    drawn = initial_value("lm_head.weight", torch.Size((500, 400)), 1, shape)
    assert drawn.std().item() == pytest.approx(0.02, rel=0.01)  # standard error 0.16 %
    assert abs(drawn.mean().item()) < 0.0002  # 4.5 standard errors
    assert (drawn.abs() > 0.04).float().mean().item() == pytest.approx(0.0455, abs=0.003)


def test_every_matrix_of_a_model_has_the_shapes_standard_deviation(model: Llama) -> None:
    for name, parameter in model.named_parameters():
        if parameter.dim() == 2:
            assert parameter[1:].std().item() == pytest.approx(0.15, rel=0.1), name


def test_norm_gains_start_at_one(model: Llama) -> None:
    gains = [p for name, p in model.named_parameters() if "norm" in name]
    assert len(gains) == 9
    assert all(torch.equal(gain, torch.ones_like(gain)) for gain in gains)


def test_only_the_padding_row_of_the_embedding_is_zero(model: Llama) -> None:
    zero_rows = (model.model.embed_tokens.weight == 0).all(dim=1)
    assert zero_rows.nonzero().flatten().tolist() == [0]
    assert not (model.lm_head.weight == 0).all(dim=1).any()


def test_without_a_padding_token_no_row_is_zero(shape: LlamaShape) -> None:
    model = build(replace(shape, padding_idx=None), seed=1, dtype=torch.float32)
    assert not (model.model.embed_tokens.weight == 0).all(dim=1).any()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_the_cast_happens_after_float32(
    shape: LlamaShape, model: Llama, dtype: torch.dtype
) -> None:
    assert same_bits(build(shape, seed=1, dtype=dtype), model.to(dtype))


def test_values_are_drawn_in_float32_not_in_a_narrower_format(shape: LlamaShape) -> None:
    drawn = initial_value("lm_head.weight", torch.Size((50, 50)), 1, shape)
    assert drawn.dtype == torch.float32
    assert not torch.equal(drawn.to(torch.bfloat16).float(), drawn)


def test_every_parameter_is_trainable_and_none_is_left_on_meta(model: Llama) -> None:
    assert all(p.requires_grad and p.is_leaf and not p.is_meta for p in model.parameters())
