"""Bytes of the fullest rank, by hand: which stage it is, and what grouped heads leave out."""

from __future__ import annotations

from dataclasses import replace

import pytest

from llmb.projection.job import Job, Model
from llmb.projection.memory import Memory, peak_memory
from llmb.reference.shapes import LlamaShape

#: Four layers, of which each keeps for a token, in bytes: 64 of norms and branches, 64 of
#: attention, 128 of its feed-forward network. Matrices of a layer: 4 * 8 * 8 + 2 * 8 * 32.
MODEL = Model(
    layers=4,
    hidden=8,
    intermediate=32,
    heads=4,
    kv_share=1.0,
    gated=False,
    vocabulary=100,
    sequence=16,
)
LAYER = 16 * 256
LOGITS = 10 * 16 * 100
STAGES = Job(MODEL, pp=4, micro_batches=4)


def of_vocabulary(size: int) -> Memory:
    return peak_memory(replace(STAGES, model=replace(MODEL, vocabulary=size)))


def test_a_single_rank_holds_every_layers_activations_and_the_logits() -> None:
    found = peak_memory(Job(MODEL))
    assert (found.activations, found.logits) == (4 * LAYER, LOGITS)


def test_the_last_stage_is_weighed_with_its_logits_and_one_micro_batch() -> None:
    found = peak_memory(STAGES)
    assert LAYER < 4 * LAYER < LAYER + LOGITS, "by its layers alone it would not be the fullest"
    assert (found.activations, found.logits) == (LAYER, LOGITS)


def test_where_logits_are_few_the_first_stage_is_the_fullest_and_has_none() -> None:
    found = of_vocabulary(10)
    assert (found.activations, found.logits) == (4 * LAYER, 0.0)


@pytest.mark.parametrize(("vocabulary", "last"), [(76, False), (77, True)])
def test_the_fuller_of_first_and_last_stage_is_the_one_that_counts(
    vocabulary: int, last: bool
) -> None:
    found = of_vocabulary(vocabulary)
    assert (found.logits > 0) is last
    assert found.activations + found.logits == max(4 * LAYER, LAYER + 10 * 16 * vocabulary)


def test_the_first_stage_has_no_more_micro_batches_on_their_way_than_there_are() -> None:
    few = replace(STAGES, micro_batches=2, model=replace(MODEL, vocabulary=10))
    assert peak_memory(few).activations == 2 * LAYER


# -- grouped heads --------------------------------------------------------------------------

GROUPED = replace(MODEL, kv_share=0.25)


def test_grouped_heads_keep_fewer_keys_and_values_for_the_backward_pass() -> None:
    # Of keys and values a quarter: 2 * 8 bytes of both instead of 2 * 2 * 8 times two.
    less = 4 * 16 * (2 * 2 * 8) * 3 / 4
    assert peak_memory(Job(GROUPED)).activations == 4 * LAYER - less


@pytest.mark.parametrize(("part", "each"), [("weights", 2), ("gradients", 4), ("optimizer", 12)])
def test_grouped_heads_have_smaller_matrices_of_keys_and_values(part: str, each: int) -> None:
    parameters = 4 * (2.5 * 8 * 8 + 2 * 8 * 32) + 2 * 100 * 8
    assert getattr(peak_memory(Job(GROUPED)), part) == each * parameters


def test_grouped_heads_are_shared_by_slices_like_any_other() -> None:
    whole, sliced = peak_memory(Job(GROUPED)), peak_memory(Job(GROUPED, tp=2))
    norms = 4 * 16 * 64  # which every slice keeps
    assert sliced.activations - norms == (whole.activations - norms) / 2
    assert sliced.weights == whole.weights / 2


@pytest.mark.parametrize(("groups", "share"), [(8, 1.0), (2, 0.25), (1, 0.125)])
def test_the_share_of_key_value_heads_is_that_of_the_shape(groups: int, share: float) -> None:
    shape = LlamaShape(num_attention_heads=8, num_key_value_heads=groups)
    assert Model.of(shape).kv_share == share
