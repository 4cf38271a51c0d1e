"""Parameters, FLOPs and products against sums written out by hand, and the published numbers."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from llmb.config import Mode
from llmb.reference.llama import Llama
from llmb.reference.shapes import LlamaShape
from llmb.workloads.arithmetic import (
    causal_flops_per_token,
    flops_of,
    flops_per_token,
    gemms,
    least_flops_per_token,
    parameter_count,
)

OFFICIAL = LlamaShape()
#: 3 layers of width 24, 4 query heads of 6 on 2 key-value heads, feed-forward 40.
GROUPED = LlamaShape(
    vocab_size=50,
    hidden_size=24,
    intermediate_size=40,
    num_hidden_layers=3,
    num_attention_heads=4,
    num_key_value_heads=2,
    sequence_length=10,
)
PLAIN = replace(GROUPED, num_key_value_heads=4)


def test_the_official_workload_has_the_published_number_of_parameters() -> None:
    assert parameter_count(OFFICIAL) == 1_433_680_000


def test_the_official_workload_has_the_published_flops_per_token() -> None:
    assert flops_per_token(OFFICIAL) == 8_105_164_800


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        # q + k + v + o, gate + up + down, two norms; embedding, head, final norm.
        (PLAIN, 3 * (576 + 576 + 576 + 576 + 960 + 960 + 960 + 48) + 1200 + 1200 + 24),
        (GROUPED, 3 * (576 + 288 + 288 + 576 + 960 + 960 + 960 + 48) + 1200 + 1200 + 24),
    ],
    ids=["plain", "grouped"],
)
def test_parameters_are_the_sum_written_out_by_hand(shape: LlamaShape, expected: int) -> None:
    assert parameter_count(shape) == expected


@pytest.mark.parametrize("shape", [OFFICIAL, PLAIN, GROUPED], ids=["official", "plain", "grouped"])
def test_parameters_are_those_of_the_model_itself(shape: LlamaShape) -> None:
    with torch.device("meta"):
        model = Llama(shape)
    assert parameter_count(shape) == sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize(
    ("shape", "weights"), [(PLAIN, 3 * 5184 + 1200), (GROUPED, 3 * 4608 + 1200)]
)
def test_flops_are_six_per_weight_and_full_square_attention(
    shape: LlamaShape, weights: int
) -> None:
    # One token meets 10 keys of 24 numbers for QK^T and again for PV, in each of 3 layers.
    multiply_adds = weights + 3 * (10 * 24 + 10 * 24)
    assert flops_per_token(shape) == 3 * 2 * multiply_adds


def test_causal_attention_meets_every_key_up_to_its_own() -> None:
    # Of 10 tokens the first meets 1 key and the last 10: 55 pairs, for QK^T and again for PV.
    pairs = sum(range(1, 11))
    multiply_adds = 10 * (3 * 5184 + 1200) + 3 * 2 * pairs * 24
    assert 10 * causal_flops_per_token(PLAIN) == 3 * 2 * multiply_adds


def test_causal_attention_saves_the_official_workload_less_than_a_hundredth() -> None:
    assert causal_flops_per_token(OFFICIAL) == 8_046_412_800


def test_grouped_heads_make_attention_no_cheaper_as_every_query_head_still_attends() -> None:
    saved_weights = 3 * 2 * 24 * 12
    assert flops_per_token(PLAIN) - flops_per_token(GROUPED) == 6 * saved_weights


def test_products_are_those_of_the_models_linear_layers() -> None:
    with torch.device("meta"):
        model = Llama(GROUPED)
    linear: dict[tuple[int, int], int] = {}
    for module in model.modules():
        if isinstance(module, torch.nn.Linear):
            key = (module.in_features, module.out_features)
            linear[key] = linear.get(key, 0) + 1
    counted: dict[tuple[int, int], int] = {}
    for gemm in gemms(GROUPED):
        counted[gemm.k, gemm.n] = counted.get((gemm.k, gemm.n), 0) + gemm.count
    assert counted == linear


def test_grouped_key_and_value_products_are_narrower_than_the_query_product() -> None:
    by_name = {gemm.name: gemm for gemm in gemms(GROUPED)}
    assert (by_name["q_proj"].n, by_name["q_proj"].count) == (24, 3)
    assert (by_name["k_proj, v_proj"].n, by_name["k_proj, v_proj"].count) == (12, 6)


def test_a_token_that_trains_takes_three_passes_and_any_other_one() -> None:
    assert flops_of(Mode.TRAIN, GROUPED) == flops_per_token(GROUPED)
    assert 3 * flops_of(Mode.FORWARD, GROUPED) == flops_per_token(GROUPED)


def test_a_generated_token_counts_the_weight_products_alone() -> None:
    products = 2 * sum(gemm.k * gemm.n * gemm.count for gemm in gemms(GROUPED))
    assert flops_of(Mode.GENERATE, GROUPED) == products


def test_what_no_device_can_do_without_is_never_more_than_what_is_counted() -> None:
    for mode in Mode:
        least = least_flops_per_token(mode, GROUPED)
        assert least_flops_per_token(mode, GROUPED, dynamic=True) <= least
        assert least <= flops_of(mode, GROUPED)
