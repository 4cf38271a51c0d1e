"""What a simulated rank holds and sends is what the projection's terms are made of, by workload.

The terms are read off the projection itself: on devices whose products and memory take no time, and
whose links carry a megabyte a second, a part's seconds are megabytes.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from llmb.config import Parallelism
from llmb.families import family_of
from llmb.projection import calibration
from llmb.projection.hardware_files import load
from llmb.projection.job import Job, Model
from llmb.projection.step_time import GRADIENT, VALUE, step_time
from llmb.reference.models import model_of
from llmb.workloads import WORKLOADS, find
from llmb.workloads.arithmetic import parameter_count
from llmb.workloads.memory import MemoryJob, held_memory
from tests.unit.simulation.test_rank import NAMES, said, simulate, simulated, small

LINK = 1e6
SLOW = load("h100").model_copy(
    update={
        "peak_flops": 1e18,
        "memory_bytes_per_second": 1e15,
        "link_bytes_per_second": LINK,
        "latency_s": 0.0,
    }
)
ALL_SHOWS = replace(calibration.constants(), launch_s=0.0, link=1.0, overlap=0.0)


def sent(model, **layout):
    """What a rank sends by the projection, in bytes: sums of slices, and of replicas or shards."""
    found = step_time(Job(model, **layout), SLOW, ALL_SHOWS)
    return found.tensor_parallel * LINK, found.data_parallel * LINK


def of_other_families(*families):
    return [one for one in NAMES if WORKLOADS[one.values[0]].family not in families]


@pytest.mark.parametrize("name", NAMES)
def test_what_a_rank_holds_between_passes_is_that_of_the_memory_model(name):
    workload, found = small(name), simulated(name=name)
    held = held_memory(MemoryJob(workload.shape, moments=workload.recipe.optimizer.moments))
    assert (held.weights, held.gradients) == (found.weights_bytes, found.gradients_bytes)
    assert (held.moments, held.master, held.buffers) == (found.optimizer_bytes, 0, 0)


@pytest.mark.parametrize("name", of_other_families("bert"))
def test_a_rank_does_the_projections_flops_and_the_masked_half_of_attention(name):
    slow = SLOW.model_copy(
        update={"peak_flops": 1.0, "sustained_fraction": 1.0, "attention_fraction": 1.0}
    )
    alike = replace(ALL_SHOWS, products=1.0, attention=1.0)
    found = step_time(Job(Model.of(small(name).shape)), slow, alike)
    projected = found.products + found.head + 2 * found.attention
    assert simulated(name=name).flops == pytest.approx(projected, rel=1e-9)


@pytest.mark.parametrize("name", NAMES)
def test_replicas_sum_every_gradient_once(name):
    shape = small(name).shape
    model, parameters = Model.of(shape), parameter_count(shape)
    (one,) = simulated(Parallelism(dp_replicate=4), 1, name=name).collectives
    assert (one.kind, one.group, one.bytes) == ("all_reduce", "dp_replicate", VALUE * parameters)
    ring = 2 * 3 / 4  # of what is summed, each rank of four sends so much
    assert sent(model, dp=4) == (0, pytest.approx(ring * GRADIENT * model.parameters, rel=1e-3))


@pytest.mark.full
def test_replicas_sum_in_buckets_of_a_megabyte_and_then_of_25():
    workload = find("llama-128m", {"sequence_length": 16})
    with torch.device("meta"):
        sizes = [VALUE * p.numel() for p in model_of(workload.shape).parameters()]
    buckets, limit, filled = 0, 1_048_576, 0
    for size in reversed(sizes):
        filled += size
        if filled >= limit:
            buckets, limit, filled = buckets + 1, 26_214_400, 0
    (one,) = simulate(workload, Parallelism(dp_replicate=2), 0).collectives
    assert buckets > 3  # else it would not show how large they are
    assert (one.kind, one.calls) == ("all_reduce", buckets + (filled > 0))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("again", [True, pytest.param(False, marks=pytest.mark.full)])
def test_shards_gather_weights_and_scatter_gradients(name, again):
    shape = small(name).shape
    model, parameters = Model.of(shape), parameter_count(shape)
    how = Parallelism(dp_shard=2, reshard_after_forward=again)
    found = said(simulated(how, 1, name=name))
    gathers = 2 if again else 1
    # Each puts its half into a gather, and all into a scatter; shards of odd sizes are filled up.
    whole = VALUE * parameters
    assert found["all_gather", "dp_shard"][1] == pytest.approx(gathers * whole / 2, rel=1e-4)
    assert found["reduce_scatter", "dp_shard"][1] == pytest.approx(whole, rel=1e-4)
    projected = sent(model, dp=2, zero=3 if again else 2)[1]
    assert projected == pytest.approx((gathers + 1) * VALUE * model.parameters / 2, rel=1e-3)


@pytest.mark.parametrize("name", of_other_families("gpt2"))
def test_slices_sum_four_states_a_layer_and_two_at_the_ends(name):
    workload = small(name, num_attention_heads=8)  # of which some share keys by fours
    shape = workload.shape
    found = said(simulate(workload, Parallelism(tp=2), 1))
    state = VALUE * shape.sequence_length * shape.hidden_size
    layers = 4 * shape.num_hidden_layers
    # Ranks add up the gradients of Qwen3's two norms of heads in each layer, of head_dim gains.
    norms = 2 * shape.num_hidden_layers if family_of(shape).query_norm else 0
    # The projection leaves them out, the embedding's sum forward, and the head's backward.
    given = (layers + 2) * state + norms * VALUE * shape.head_dim
    assert found["all_reduce", "tp"] == (layers + 2 + norms, given)
    ring = 2 * 1 / 2
    assert sent(Model.of(shape), tp=2)[0] == pytest.approx(ring * layers * state, rel=1e-6)
