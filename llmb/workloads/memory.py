"""The one memory model: peak memory of the fullest rank of a training job. No torch.

``llmb project``, ``llmb simulate``, ``llmb workload list`` and the check before a run count memory
here. A recipe says what a system stores: llmb's own loop, or Megatron-style mixed precision.

A step has a few moments at which memory can be largest: the loss, the backward pass of a block, the
gradient of the embedding, the optimizer's step. The peak is the largest of their sums.
tests/unit/workloads/test_memory.py holds the sums against ``llmb simulate``, which follows every
tensor (docs/adr/0063).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

from llmb.config import Parallelism, Schedule
from llmb.workloads.memory_job import (
    LLMB,
    MEGATRON,
    MIXED,
    RECIPES,
    Memory,
    MemoryJob,
    StorageRecipe,
    own,
    recipe_of,
)
from llmb.workloads.memory_rank import RankShare

__all__ = [
    "LLMB",
    "MEGATRON",
    "MIXED",
    "RECIPES",
    "Memory",
    "MemoryJob",
    "StorageRecipe",
    "activations_at_loss",
    "held_memory",
    "in_flight",
    "own",
    "peak_memory",
    "recipe_of",
]


def peak_memory(job: MemoryJob) -> Memory:
    """Return the memory of the fullest rank at its fullest moment.

    Not counted: unused memory of an allocator, memory of libraries, workspace within a kernel.
    """
    return max((at for rank in _ranks(job) for at in rank.moments()), key=lambda at: at.total)


def held_memory(job: MemoryJob) -> Memory:
    """Return the memory of the fullest rank at the optimizer's step, without activations."""
    return max((rank.held() for rank in _ranks(job)), key=lambda at: at.total)


def activations_at_loss(job: MemoryJob) -> float:
    """Return the bytes of activations and logits of the fullest rank when the loss is computed."""
    return max(rank.at_loss() for rank in _ranks(job))


def in_flight(how: Parallelism, stages: tuple[int, ...], micro_batches: int) -> int:
    """Return how many micro-batches a rank has in flight. Example: 4 for stage 0 of 4 (1F1B).

    GPipe and LoopedBFS start all micro-batches before the first backward pass. For schedules with
    two stages per rank, the number is an upper bound for both stages together.
    """
    if not stages:
        return 1
    if how.schedule in ("GPipe", "LoopedBFS"):
        return micro_batches
    return min(micro_batches, how.stages - min(stages))


_Numbers = tuple[int, ...]


@cache
def _places(layers: int, pp: int, schedule: Schedule) -> tuple[tuple[_Numbers, _Numbers, int], ...]:
    """Return stages, blocks of each stage, and senders: of the first, second and last rank.

    Blocks are shared as ``llmb.parallel.pipeline`` cuts a model. Senders are stages on other ranks
    that send states or gradients to the rank.
    """
    how = Parallelism(pp=pp, schedule=schedule)
    last, found = how.stages - 1, []
    held = [number * how.stages // layers for number in range(layers)]
    for place in sorted({how.rank_of(0), how.rank_of(1), how.rank_of(last)}):
        stages = tuple(n for n in range(how.stages) if how.rank_of(n) == place)
        beside = [n for stage in stages for n in (stage - 1, stage + 1)]
        senders = sum(0 <= n <= last and how.rank_of(n) != place for n in beside)
        found.append((stages, tuple(map(held.count, stages)), senders))
    return tuple(found)


def _ranks(job: MemoryJob) -> Iterator[RankShare]:
    """Yield the ranks of a pipeline that can be the fullest."""
    how, layers = job.parallelism, job.shape.num_hidden_layers
    if how.pp == 1:
        yield RankShare(job, layers, layers, True, True, 1)
        return
    if job.stored.fused:
        each = layers // how.pp
        several: float = min(how.pp, job.micro_batches)
        if job.virtual_stages > 1:
            several *= 1 + (how.pp - 1) / (how.pp * job.virtual_stages)
        yield RankShare(job, each, each, True, False, several)
        yield RankShare(job, each, each, False, True, 1)
        return
    for stages, blocks, senders in _places(layers, how.pp, how.schedule):
        several = in_flight(how, stages, job.micro_batches)
        first, last = 0 in stages, how.stages - 1 in stages
        yield RankShare(job, sum(blocks), max(blocks), first, last, several, senders)
