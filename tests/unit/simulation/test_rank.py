"""A simulated rank has and does what arithmetic says, to the last parameter, FLOP and byte."""

from __future__ import annotations

import json
from functools import cache
from typing import get_args

import pytest
import torch
from click.testing import CliRunner

from llmb.cli import simulate as command
from llmb.config import Mode, Parallelism, Schedule
from llmb.errors import LlmbError
from llmb.projection.job import Model
from llmb.workloads import WORKLOADS, find
from llmb.workloads.arithmetic import flops_per_token, parameter_count

TINY = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "sequence_length": 32,
}
LAYERS = TINY["num_hidden_layers"]
VALUE = 2
ALONE = Parallelism()


def named_once():
    """Every trained workload, those of equal tiny shapes and optimizers under the first's name.

    Of those that differ in nothing but constants (a vocabulary, a learning rate) all after the
    first are for a full run.
    """
    found, kinds = {}, set()
    for name, workload in WORKLOADS.items():
        shape, optimizer = find(name, TINY).shape, workload.recipe.optimizer
        if Mode.TRAIN not in workload.modes or (shape, optimizer) in found:
            continue
        shared = getattr(shape, "num_key_value_heads", None)
        kind = workload.family, shared, optimizer.moments
        marks = [pytest.mark.full] if kind in kinds else []
        found[shape, optimizer] = pytest.param(name, marks=marks)
        kinds.add(kind)
    return list(found.values())


NAMES = named_once()


def small(name="llama-1.4b", **changes):
    return find(name, {**TINY, **changes})


def simulate(workload, how, rank, **options):
    from llmb.simulation import rank as simulation  # a second, which collecting need not take

    return simulation.simulate(workload, how, rank, **options)


@cache
def simulated(how=ALONE, rank=0, *, name="llama-1.4b", layers=LAYERS, **options):
    """A simulation of a small workload: of the same one several questions are asked."""
    return simulate(small(name, num_hidden_layers=layers), how, rank, **options)


def counted(shape):
    """FLOPs of a step of one sequence: attention's backward pass computes its scores once more."""
    length, width = shape.sequence_length, shape.num_attention_heads * shape.head_dim
    again = shape.num_hidden_layers * 2 * length * length * width
    return flops_per_token(shape) * length + again


def said(found):
    """What a rank says: kind and dimension of the mesh -> calls and bytes."""
    return {(one.kind, one.group): (one.calls, one.bytes) for one in found.collectives}


@pytest.mark.parametrize("name", NAMES)
def test_alone_it_has_every_parameter_and_does_every_flop_of_the_closed_forms(name):
    workload, found = small(name), simulated(name=name)
    shape = workload.shape
    assert found.parameters == parameter_count(shape)
    assert found.weights_bytes == found.gradients_bytes == VALUE * found.parameters
    moments = workload.recipe.optimizer.moments
    assert found.optimizer_bytes == moments * found.weights_bytes
    assert found.collectives == ()
    if workload.family != "bert":
        assert found.flops == counted(shape)
    else:  # and the pooler's and the sentence's products, of one token
        few = 6 * (shape.hidden_size**2 + 2 * shape.hidden_size)
        # Dropout has attention write its scores out, and so go backward without computing them.
        assert found.flops == flops_per_token(shape) * shape.sequence_length + few


def test_slices_halve_the_matrices_and_send_four_sums_a_layer():
    alone, half = simulated(), simulated(Parallelism(tp=2), 1)
    gains = (2 * LAYERS + 1) * 64
    assert half.parameters - gains == (alone.parameters - gains) / 2
    assert half.flops == alone.flops / 2
    states = 32 * 64 * VALUE
    # Four a layer; forward of the embedding, backward of the head, and gathered logits.
    assert said(half)["all_reduce", "tp"] == (4 * LAYERS + 2, (4 * LAYERS + 2) * states)


def test_shards_hold_their_part_and_gather_twice_or_once():
    alone, again = simulated(), simulated(Parallelism(dp_shard=4), 3)
    once = simulated(Parallelism(dp_shard=4, reshard_after_forward=False), 3)
    assert again.parameters == once.parameters == alone.parameters / 4
    assert again.flops == once.flops == alone.flops
    ends = 1
    assert said(once)["all_gather", "dp_shard"] == (LAYERS + ends, once.weights_bytes)
    assert said(again)["all_gather", "dp_shard"][0] == 2 * LAYERS + 2 * ends
    assert said(once)["reduce_scatter", "dp_shard"][1] == alone.gradients_bytes


def test_stages_have_the_model_between_them_and_let_in_as_many_micro_batches_as_follow():
    workload, how = small(num_hidden_layers=4), Parallelism(pp=4)
    alone = simulate(workload, ALONE, 0)
    found = [simulate(workload, how, rank, micro_batches=8) for rank in range(4)]
    assert [one.stages for one in found] == [(0,), (1,), (2,), (3,)]
    assert sum(one.parameters for one in found) == alone.parameters
    assert sum(one.flops for one in found) == alone.flops
    assert [one.in_flight for one in found] == [4, 3, 2, 1]
    assert found[0].peak_bytes > found[1].peak_bytes
    looped = simulate(workload, Parallelism(pp=2, schedule="Interleaved1F1B"), 1, micro_batches=2)
    assert looped.stages == (1, 3)


@pytest.mark.parametrize("loss_parallel", [pytest.param(False, marks=pytest.mark.full), True])
def test_a_stage_hands_over_its_part_of_a_sequence_that_slices_share(loss_parallel):
    how = Parallelism(tp=2, pp=2, sequence_parallel=True, loss_parallel=loss_parallel)
    plain = Parallelism(tp=2, pp=2)
    state = 32 * 64 * VALUE
    for rank in (0, 3):
        found = simulated(how, rank, micro_batches=2, whole_step=True)
        whole = simulated(plain, rank, micro_batches=2, whole_step=True)
        assert said(found)["send", "pp"] == (1, state // 2)
        assert said(whole)["send", "pp"] == (1, state)
        assert found.flops == whole.flops
        assert found.parameters == whole.parameters
        assert found.schedule_flops == 2 * found.flops
        assert found.activations_bytes < whole.activations_bytes
        # Each layer's four sums are four pairs of gather and scatter, of the same size.
        sums = 4 * LAYERS // how.pp
        assert said(found)["reduce_scatter", "tp"][0] >= sums - 1
        assert said(found)["all_gather", "tp"][0] >= sums - 1


@pytest.mark.parametrize(
    "schedule",
    [
        pytest.param(name, marks=() if name in ("1F1B", "ZBVZeroBubble") else pytest.mark.full)
        for name in get_args(Schedule)
    ],
)
def test_torchs_schedule_takes_every_micro_batch_through_a_ranks_stages(schedule):
    how, count = Parallelism(pp=2, schedule=schedule), 4
    found = simulated(how, layers=4, micro_batches=count, whole_step=True)
    assert found.schedule_flops == count * found.flops
    if schedule in ("1F1B", "GPipe"):  # of which is known beforehand how many are on their way
        expected = found.in_flight * found.activations_bytes
        # Of every micro-batch a state's gradient is received; with each on its way one is counted.
        expected += (count - found.in_flight) * 32 * 64 * VALUE
        assert found.schedule_activations_bytes == pytest.approx(expected, rel=0.002)
    assert found.schedule_activations_bytes >= found.activations_bytes


def test_checkpointed_blocks_keep_their_input_and_compute_a_third_more():
    workload = small()
    plain, again = simulated(), simulated(sac_freq="1/1")
    logits = 32 * workload.shape.vocab_size * VALUE
    assert again.activations_bytes - logits < (plain.activations_bytes - logits) / 5
    assert plain.flops < again.flops < plain.flops * 4 / 3


def test_at_the_peak_of_few_tokens_all_is_there_that_stays_and_little_more():
    found = simulated()
    assert found.peak["weights"] == found.weights_bytes
    assert found.peak["gradients"] <= found.gradients_bytes
    steps = found.peak["optimizer"] - found.optimizer_bytes
    assert 0 < steps < 4 * 100  # each parameter's counter of steps
    assert found.peak["collectives"] == 0
    assert found.peak_bytes == sum(found.peak.values())


@pytest.mark.full
def test_stage_3_gathers_a_block_at_a_time_and_stage_2_keeps_them_all():
    workload = small(hidden_size=256, intermediate_size=2048, num_hidden_layers=5)
    alone = simulate(workload, ALONE, 0)
    again = simulate(workload, Parallelism(dp_shard=4), 0)
    once = simulate(workload, Parallelism(dp_shard=4, reshard_after_forward=False), 0)
    assert again.activations_bytes == pytest.approx(alone.activations_bytes, rel=0.02)
    model = Model.of(workload.shape)
    ends = 2 * model.vocabulary * model.hidden  # the root's own, which it keeps
    one = VALUE * (ends + model.layer_parameters)
    assert again.peak["collectives"] == pytest.approx(one, rel=0.001)
    assert once.peak["collectives"] == alone.weights_bytes
    assert again.peak_bytes < once.peak_bytes
    assert again.peak["weights"] == alone.weights_bytes / 4


def test_replicas_hold_their_gradients_once_more():
    alone, replica = simulated(), simulated(Parallelism(dp_replicate=2))
    assert replica.peak_bytes - alone.peak_bytes == pytest.approx(alone.gradients_bytes, rel=0.1)


@pytest.mark.parametrize("mesh", [{}, {"dp_shard": 2}])
def test_mixed_precision_keeps_float32_weights_and_gathers_16_bits(mesh):
    how = Parallelism(**mesh)
    plain, mixed = simulated(how), simulated(how, mixed_precision=True)
    assert mixed.weights_bytes == mixed.gradients_bytes == 2 * plain.weights_bytes
    assert mixed.optimizer_bytes == 2 * plain.optimizer_bytes
    assert mixed.flops == plain.flops
    if mesh:
        ours, theirs = said(mixed), said(plain)
        gathered, scattered = ("all_gather", "dp_shard"), ("reduce_scatter", "dp_shard")
        assert ours[gathered] == theirs[gathered]
        assert ours[scattered][1] == 2 * theirs[scattered][1]


def test_the_projection_counts_the_same_work_as_the_simulation():
    found = simulated(Parallelism(tp=2, pp=2, dp_replicate=2), micro_batches=4)
    model = Model.of(small().shape)
    matrices = model.layers * model.layer_parameters / 4 + model.vocabulary * model.hidden / 2
    gains = LAYERS // 2 * 2 * 64  # of the layers of a stage
    assert found.parameters == matrices + gains


@pytest.mark.parametrize(
    ("layers", "stages", "ranks"),
    [
        pytest.param(8, 4, 6144, id="six thousand, two of its layers each"),
        pytest.param(128, 64, 98_304, id="a hundred thousand", marks=pytest.mark.full),
    ],
)
def test_a_rank_of_a_great_many_of_the_1t_model(layers, stages, ranks):
    workload = find("alcf-1t", {"num_hidden_layers": layers})
    how = Parallelism(dp_replicate=128, tp=12, pp=stages)
    found = simulate(workload, how, ranks // 2 + 848, micro_batches=512, sac_freq="1/1")
    assert found.world_size == ranks
    model = Model.of(workload.shape)
    assert found.parameters == 2 * model.layer_parameters / 12 + 2 * 2 * model.hidden
    # Four a layer, and one of the two that are recomputed: torch stops before the last.
    assert said(found)["all_reduce", "tp"] == (10, 10 * 2048 * model.hidden * VALUE)
    assert said(found)["send", "pp"] == (2, 2 * 2048 * model.hidden * VALUE)


def test_what_torch_may_take_away_is_still_there_and_nothing_is_left_behind():
    from llmb.simulation import private

    assert torch.__version__.split("+")[0] >= "2.11", "older ones were not tried"
    with private.fake_ranks(3, 7):
        assert torch.distributed.get_rank() == 3
        with private.fake_tensors():
            made = torch.empty(10**9, 10**6)
            torch.distributed.all_reduce(made)
            with private.real_tensors():
                assert float(torch.ones(1)) == 1
    assert not torch.distributed.is_initialized()


def call(*words):
    return CliRunner().invoke(command.command, [str(w) for w in words], catch_exceptions=False)


def test_the_command_shows_first_second_and_last_stage():
    words = ("--workload", "alcf-1t-4l", "--world-size", 48, "--tp", 12, "--pp", 4)
    shown = call(*words, "--accumulate", 512, "--sac-freq", "1/1").output
    assert "rank 0, stage 0" in shown
    assert "rank 12, stage 1" in shown
    assert "rank 36, stage 3" in shown


def test_the_command_shows_a_named_rank_as_json_in_the_originals_layout():
    words = ("--workload", "alcf-1t-4l", "--world-size", 48, "--rank", 47, "--json")
    data = json.loads(call(*words).output)
    assert (data["parallelism"]["tp"], data["parallelism"]["pp"]) == (12, 2)
    (one,) = data["ranks"]
    assert (one["rank"], one["stages"], one["world_size"]) == (47, [1], 48)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--world-size", 770), "does not divide 770 ranks"),
        (("--world-size", 768, "--rank", 768), "--rank 768: there are 768"),
        (("--world-size", 640, "--tp", 5, "--pp", 64), "--tp 5 does not divide"),
        (("--world-size", 768, "--accumulate", 8), "takes 64 micro-batches or more"),
        (("--world-size", 768, "--schedule", "2F2B"), "--schedule 2F2B"),
        (("--world-size", 768, "--sac-freq", "9"), "--sac-freq"),
        (("--world-size", 768, "--mixed-precision"), "runs without --mixed-precision"),
        (("--world-size", 12, "--pp", 1, "--whole-step"), "give --pp 2 or more"),
        (("--world-size", 64, "--tp", 1, "--sequence-parallel"), "give --tp 2 or more"),
        (("--world-size", 640, "--tp", 5, "--pp", 1), "does not divide the 192 attention heads"),
        (("--world-size", 36, "--pp", 3, "--accumulate", 2), "takes 3 micro-batches or more"),
        (("--world-size", 200, "--tp", 1, "--pp", 200), "the model has 128 layers"),
        (("--workload", "litgpt-forward", "--world-size", 2), "is not trained"),
    ],
)
def test_a_job_that_cannot_be_is_one_line(words, says):
    with pytest.raises(LlmbError) as error:
        call("--workload", "alcf-1t", *words)
    assert error.value.exit_code == 2
    assert says in str(error.value)
    assert "\n" not in str(error.value)
