"""The memory model is held to simulated ranks, which follow every tensor of a step.

The same model counts for `llmb project`, `llmb workload list` and the check before a run.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from click.testing import CliRunner

from llmb.cli.project_job import job as project_job
from llmb.config import BF16, FP32, Parallelism
from llmb.projection.job import Job, Model
from llmb.workloads import find
from llmb.workloads.checkpointing import OP, recomputed_blocks
from llmb.workloads.facts import facts
from llmb.workloads.memory import (
    LLMB,
    MEGATRON,
    MIXED,
    RECIPES,
    MemoryJob,
    held_memory,
    own,
    peak_memory,
    recipe_of,
)

FOUR = {"num_hidden_layers": 4}
#: A Llama of 4 blocks whose activations at 2 sequences are as large as its weights.
DEEP = {"hidden_size": 512, "intermediate_size": 1408, "num_attention_heads": 8, **FOUR}
DEEP |= {"vocab_size": 8000, "sequence_length": 512}
#: Twice as many channels of queries as hidden channels, and heads that share keys.
QWEN3 = DEEP | {"head_dim": 128, "num_key_value_heads": 4}
SHARDS = Parallelism(dp_shard=4)
KEPT = Parallelism(dp_shard=4, reshard_after_forward=False)
SLICES = Parallelism(tp=4)
BOTH = Parallelism(tp=4, sequence_parallel=True, loss_parallel=True)

#: Workload, its changed sizes, ranks, and options of the simulation. The first are quick.
JOBS: list[tuple[str, dict[str, int], Parallelism, dict[str, Any]]] = [
    ("llama-1.4b", FOUR, Parallelism(), {}),
    ("llama-1.4b", DEEP, Parallelism(), {"micro_batch": 8, "sac_freq": "1/1"}),
    ("nemo-bert-base", FOUR, Parallelism(), {"micro_batch": 4}),
    ("llama-1.4b", DEEP, Parallelism(pp=2), {"micro_batch": 4, "micro_batches": 8}),
    ("gpt2-125m", FOUR, Parallelism(dp_replicate=2), {}),
    ("llama-1.4b", DEEP, SHARDS, {"micro_batch": 4}),
    ("llama-1.4b", DEEP, SLICES, {"micro_batch": 8}),
    ("qwen3-8b", QWEN3, Parallelism(), {"micro_batch": 8}),
    ("qwen3-0.6b", QWEN3, Parallelism(), {"micro_batch": 8}),
    ("qwen3-8b", QWEN3, BOTH.model_copy(update={"tp": 2}), {"micro_batch": 8, "sac_freq": "op"}),
    ("llama-1.4b", DEEP, Parallelism(), {"micro_batch": 8}),
    ("llama-1.4b", DEEP, Parallelism(), {"micro_batch": 8, "sac_freq": "1/2"}),
    ("llama-1.4b", DEEP, Parallelism(), {"micro_batch": 8, "sac_freq": "op"}),
    ("llama-1.4b", DEEP, Parallelism(), {"micro_batch": 4, "mixed_precision": True}),
    ("llama-1.4b", DEEP, Parallelism(), {"micro_batch": 1, "micro_batches": 4}),
    ("gpt2-350m", FOUR, Parallelism(), {"micro_batch": 4, "sac_freq": "1/1"}),
    ("gpt2-125m", FOUR, SHARDS, {"micro_batch": 2}),
    ("nemo-bert-base", FOUR, SHARDS, {"micro_batch": 2}),
    ("llama-3.1-8b", FOUR | {"sequence_length": 512}, Parallelism(dp_shard=8), {}),
    ("llama-3.1-8b", FOUR | {"sequence_length": 512}, KEPT, {"mixed_precision": True}),
    ("llama-1.4b", FOUR, KEPT, {}),
    ("llama-1.4b", FOUR, SHARDS, {"micro_batches": 4}),
    ("llama-1.4b", DEEP, BOTH, {"micro_batch": 8}),
    ("llama-1.4b", FOUR, Parallelism(tp=2, dp_replicate=2), {}),
    ("llama-1.4b", DEEP, Parallelism(tp=2, dp_shard=4), {"micro_batch": 4}),
    ("gpt2-125m", FOUR, SLICES, {"micro_batch": 2, "mixed_precision": True}),
    (
        "llama-1.4b",
        DEEP,
        Parallelism(pp=2, schedule="Interleaved1F1B"),
        {"micro_batch": 4, "micro_batches": 4},
    ),
    (
        "llama-1.4b",
        DEEP,
        Parallelism(pp=2, schedule="GPipe"),
        {"micro_batch": 2, "micro_batches": 4},
    ),
    (
        "llama-1.4b",
        DEEP,
        Parallelism(pp=2, dp_replicate=2),
        {"micro_batch": 4, "micro_batches": 8},
    ),
    ("llama-1.4b", DEEP, Parallelism(pp=2, tp=2), {"micro_batch": 4, "micro_batches": 8}),
]
QUICK = 4


@pytest.mark.parametrize(
    ("name", "sizes", "how", "options"),
    [pytest.param(*job, marks=[pytest.mark.full] * (n >= QUICK)) for n, job in enumerate(JOBS)],
)
def test_a_jobs_peak_is_within_2_percent_of_the_simulated_peak(
    name: str, sizes: Any, how: Parallelism, options: dict[str, Any]
) -> None:
    from llmb.simulation.rank import simulate

    workload = find(name, sizes)
    each = how.world_size // how.pp  # rank numbers from stage to stage
    found = [simulate(workload, how, each * place, **options) for place in range(how.pp)]
    frequency = options.get("sac_freq")
    job = MemoryJob(
        workload.shape,
        MIXED if options.get("mixed_precision") else LLMB,
        options.get("micro_batch", 1),
        options.get("micro_batches", 1),
        how,
        recomputed=recomputed_blocks(frequency, workload.shape.num_hidden_layers),
        recompute="op" if frequency == OP else "none",
        moments=workload.recipe.optimizer.moments,
    )
    exact = max(one.peak_bytes for one in found)
    assert peak_memory(job).total == pytest.approx(exact, rel=0.02)


def test_one_job_has_one_number_in_every_command() -> None:
    workload = find("llama-1.4b", {})
    listed = facts(workload)["memory_bytes"]["BF16"]
    assert listed == round(Job(Model.of(workload.shape)).memory.total)
    words = "--workload llama-1.4b --hardware h100 --world-size 1 --global-batch 1"
    done = CliRunner().invoke(project_job, [*words.split(), "--json"])
    found = json.loads(done.output)
    assert found["memory"]["total"] == pytest.approx(listed)
    assert found["memory_counts"] == LLMB.description
    assert listed == pytest.approx(11.471e9, rel=1e-3), "simulated: 11,471,080,896 bytes"


def test_megatron_is_counted_where_it_is_asked_for_and_said() -> None:
    words = "--workload llama-1.4b --hardware h100 --world-size 1 --global-batch 1"
    done = CliRunner().invoke(project_job, [*words.split(), "--stored", "megatron"])
    assert f"memory counts {MEGATRON.description}" in " ".join(done.output.split())
    state = held_memory(MemoryJob(find("llama-1.4b", {}).shape, MEGATRON))
    assert state.total / state.weights == 18 / 2


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=lambda recipe: recipe.name)
def test_each_way_to_share_needs_less_and_each_sequence_more(recipe: Any) -> None:
    job = MemoryJob(find("llama-1.4b", {}).shape, recipe)
    sizes = [peak_memory(replace(job, micro_batch=n)).total for n in (1, 8, 64)]
    assert sizes == sorted({*sizes})
    sliced = replace(job, micro_batch=8, parallelism=Parallelism(tp=4))
    assert peak_memory(sliced).total < sizes[1]
    plain = peak_memory(replace(job, micro_batch=64)).total
    assert peak_memory(replace(job, micro_batch=64, recompute="full", recomputed=12)).total < plain


def test_a_precision_has_the_recipe_of_its_run() -> None:
    assert (recipe_of(BF16), recipe_of(FP32)) == (LLMB, own(4))
    assert recipe_of(BF16.model_copy(update={"master_weights": True})) == MIXED
