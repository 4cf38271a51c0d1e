"""Bytes of the fullest rank, by hand: which stage it is, and what grouped heads leave out."""

from __future__ import annotations

from dataclasses import replace

import pytest

from llmb.errors import UsageError
from llmb.projection.job import Job, Model
from llmb.reference.shapes import LlamaShape
from llmb.workloads.memory import MEGATRON, Memory

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
#: Gains of the norms, two of a layer and the last.
GAINS = (2 * 4 + 1) * 8


def peak_memory(job: Job) -> Memory:
    return replace(job, stored=MEGATRON).memory


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


@pytest.mark.parametrize(("vocabulary", "last"), [(75, False), (76, True)])
def test_the_fuller_of_first_and_last_stage_is_the_one_that_counts(
    vocabulary: int, last: bool
) -> None:
    found = of_vocabulary(vocabulary)
    assert (found.logits > 0) is last
    # The last stage has the gain of the last norm, 18 bytes each of 8.
    fullest = max(4 * LAYER, LAYER + 10 * 16 * vocabulary + 18 * 8)
    assert found.activations + found.logits + 18 * 8 * last == fullest


def test_the_first_stage_has_no_more_micro_batches_on_their_way_than_there_are() -> None:
    few = replace(STAGES, micro_batches=2, model=replace(MODEL, vocabulary=10))
    assert peak_memory(few).activations == 2 * LAYER


# -- grouped heads --------------------------------------------------------------------------

GROUPED = replace(MODEL, kv_share=0.25)


def test_grouped_heads_keep_fewer_keys_and_values_for_the_backward_pass() -> None:
    # Of keys and values a quarter: 2 * 8 bytes of both instead of 2 * 2 * 8 times two.
    less = 4 * 16 * (2 * 2 * 8) * 3 / 4
    assert peak_memory(Job(GROUPED)).activations == 4 * LAYER - less


@pytest.mark.parametrize(
    ("part", "each"), [("weights", 2), ("gradients", 4), ("moments", 8), ("master", 4)]
)
def test_grouped_heads_have_smaller_matrices_of_keys_and_values(part: str, each: int) -> None:
    parameters = 4 * (2.5 * 8 * 8 + 2 * 8 * 32) + 2 * 100 * 8 + GAINS
    assert getattr(peak_memory(Job(GROUPED)), part) == each * parameters


def test_grouped_heads_are_shared_by_slices_like_any_other() -> None:
    whole, sliced = peak_memory(Job(GROUPED)), peak_memory(Job(GROUPED, tp=2))
    norms = 4 * 16 * 64  # which every slice keeps
    assert sliced.activations - norms == (whole.activations - norms) / 2
    assert sliced.weights - 2 * GAINS == (whole.weights - 2 * GAINS) / 2


@pytest.mark.parametrize(("groups", "share"), [(8, 1.0), (2, 0.25), (1, 0.125)])
def test_the_share_of_key_value_heads_is_that_of_the_shape(groups: int, share: float) -> None:
    shape = LlamaShape(num_attention_heads=8, num_key_value_heads=groups)
    assert Model.of(shape).kv_share == share


# -- what a layout changes --------------------------------------------------------------------

MATRICES = 4 * 768 + 2 * 100 * 8
PARAMETERS = MATRICES + GAINS


@pytest.mark.parametrize(
    ("layout", "layer"),
    [
        ({"fused_attention": False}, 16 * (256 + 4 * 4 * 16)),
        ({"fused_attention": False, "recompute": "attention"}, 16 * 256),
        ({"tp": 2}, 16 * (64 + 96)),
        ({"tp": 2, "sequence_parallel": True}, 16 * 128),
        ({"tp": 2, "fused_attention": False}, 16 * (64 + 96 + 128)),
        ({"micro_batch": 3}, 3 * 16 * 256),
    ],
    ids=str,
)
def test_what_a_layer_keeps_follows_from_the_layout(layout: dict, layer: int) -> None:
    assert peak_memory(Job(MODEL, **layout)).activations == 4 * layer


def test_a_gate_keeps_one_activation_more() -> None:
    assert peak_memory(Job(replace(MODEL, gated=True))).activations == 4 * 16 * (256 + 64)


@pytest.mark.parametrize(("layout", "kept"), [({}, 16), ({"tp": 2}, 16)])
def test_where_all_is_recomputed_a_layer_keeps_its_input_and_one_is_worked_on(
    layout: dict, kept: int
) -> None:
    found = peak_memory(Job(MODEL, recompute="full", **layout)).activations
    assert found == 4 * 16 * kept + peak_memory(Job(MODEL, **layout)).activations / 4
    shared = Job(MODEL, tp=2, recompute="full", sequence_parallel=True)
    assert peak_memory(shared).activations == 4 * 16 * 8 + 16 * 128


@pytest.mark.parametrize(
    ("zero", "weights", "gradients", "state", "gathered"),
    [
        (0, 2 * PARAMETERS, 4 * PARAMETERS, 12 * PARAMETERS, 0),
        (1, 2 * PARAMETERS, 4 * PARAMETERS, 3 * PARAMETERS, 0),
        (2, 2 * PARAMETERS, PARAMETERS, 3 * PARAMETERS, 0),
        # Two layers are gathered at a time: of both their weights and their gradients.
        (3, PARAMETERS / 2, PARAMETERS, 3 * PARAMETERS, 2 * 2 * 2 * (768 + 16)),
    ],
)
def test_each_stage_of_zero_shares_one_thing_more_among_replicas(
    zero: int, weights: float, gradients: float, state: float, gathered: float
) -> None:
    found = peak_memory(Job(MODEL, dp=4, zero=zero))
    assert (found.weights, found.gradients) == (weights, gradients)
    assert (found.moments + found.master, found.buffers) == (state, gathered)


def test_several_stages_a_rank_have_somewhat_more_micro_batches_on_their_way() -> None:
    job = Job(replace(MODEL, vocabulary=1), pp=2, micro_batches=4, virtual_stages=2)
    assert peak_memory(job).activations == 2 * (1 + 1 / 4) * 2 * LAYER
    assert peak_memory(replace(job, virtual_stages=1)).activations == 2 * 2 * LAYER


def test_slices_share_logits_and_the_total_is_of_all_parts() -> None:
    found = peak_memory(Job(MODEL, tp=2))
    assert found.logits == LOGITS / 2
    assert found.total == sum(found.parts().values())
    state = ["weights", "gradients", "moments", "master"]
    assert list(found.parts()) == [*state, "activations", "buffers", "logits"]


@pytest.mark.parametrize(
    ("layout", "words"),
    [
        ({"tp": 4, "model": replace(MODEL, kv_share=0.5)}, "divide the 2 key-value heads"),
        ({"tp": 4, "model": replace(MODEL, intermediate=30)}, "divide the 30 columns"),
        ({"pp": 2, "virtual_stages": 4}, "--pp x --virtual-stages 8 does not divide the 4 layers"),
        ({"sequence_parallel": True}, "--sequence-parallel is for ranks that share a layer"),
        ({"overlapped_tp": True}, "--overlap-tp is for ranks that share a layer"),
        (
            {"tp": 4, "sequence_parallel": True, "model": replace(MODEL, sequence=18)},
            "--tp 4 does not divide the sequence of 18 tokens",
        ),
        ({"micro_batches": 0}, "micro batches is 0: it must be positive"),
        ({"virtual_stages": 0}, "virtual stages is 0: it must be positive"),
        ({"dp": 10**12 + 1}, "must be positive"),
        ({"pp": -1}, "pp is -1"),
    ],
    ids=str,
)
def test_a_layout_that_cannot_be_is_refused_by_its_option(layout: dict, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        replace(Job(MODEL), **layout).check()


@pytest.mark.parametrize(
    "layout",
    [{"dp": 10**12}, {"tp": 4, "sequence_parallel": True, "overlapped_tp": True}, {"pp": 4}],
    ids=str,
)
def test_a_layout_that_can_be_is_the_job_itself(layout: dict) -> None:
    job = Job(MODEL, **layout)
    assert job.check() is job


def test_a_jobs_amounts_are_products_of_its_layout() -> None:
    job = Job(MODEL, dp=2, tp=2, pp=4, micro_batch=3, micro_batches=5)
    assert (job.devices, job.sequences, job.tokens) == (16, 30, 480)
    assert job.rank_parameters == MATRICES / 8
