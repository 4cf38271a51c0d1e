"""The facts of each rank of a run, and the communication, after the stream has ended."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import TYPE_CHECKING

import torch

from llmb import clock
from llmb.measure.host import host_digest
from llmb.observe.collectives import Collectives
from llmb.processes.modes import Task
from llmb.processes.modes.stage import Stage
from llmb.records.evidence import CollectiveEvidence, RankEvidence, RanksEvidence
from llmb.wire.messages import Fence, Readings

if TYPE_CHECKING:
    from llmb.parallel.ranks import Ranks

#: Number of steps that a rank makes alone; the median counts.
_ALONE = 3


def compared(
    task: Task, stage: Stage, ranks: Ranks, fences: Sequence[tuple[Fence, Readings]]
) -> RanksEvidence:
    """Return the facts of every rank: a collective call.

    ``fences`` are the fences of this rank's stream, with the readings after each fence.
    """
    # Compiled code would hide the communication, which is the same without compilation.
    with torch.compiler.set_stance("force_eager"), Collectives() as seen:
        task.whole_step()
    mine = RankEvidence(
        rank=ranks.place.rank,
        host=host_digest(),
        device=stage.config.device,
        peak_memory_bytes=fences[-1][1].peak_memory_bytes if fences else None,
        fence_ns=tuple(fence.worker_ns for fence, _ in fences),
        alone_s=_alone_s(task, stage),
    )
    every = ranks.gather(mine.model_dump(mode="json"))
    return RanksEvidence(
        ranks=tuple(map(RankEvidence.model_validate, every)),
        collectives=tuple(
            CollectiveEvidence(kind=kind, calls=calls, bytes=seen.bytes[kind])
            for kind, calls in sorted(seen.calls.items())
        ),
        library=ranks.library,
    )


def _alone_s(task: Task, stage: Stage) -> float | None:
    """Return the time of a step without other ranks, None if a rank cannot make a step alone."""
    if stage.layout is None or stage.layout.is_sharded:
        return None
    taken = []
    for _ in range(_ALONE):
        stage.backend.synchronize()
        begin = clock.now_ns()
        with stage.layout.silence():
            task.whole_step()
        stage.backend.synchronize()
        taken.append((clock.now_ns() - begin) / 1e9)
    return median(taken)
