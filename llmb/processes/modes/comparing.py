"""What each rank of a run was, and what is said between them: once the stream has ended."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import TYPE_CHECKING

import torch

from llmb.measure import clock
from llmb.measure.host import host_digest
from llmb.observe.collectives import Collectives
from llmb.processes.modes import Task
from llmb.processes.modes.stage import Stage
from llmb.records.evidence import CollectiveEvidence, RankEvidence, RanksEvidence
from llmb.wire.messages import Fence, Readings

if TYPE_CHECKING:
    from llmb.parallel.ranks import Ranks

#: Steps a rank makes alone, of which the median counts.
_ALONE = 3


def compared(
    task: Task, stage: Stage, ranks: Ranks, fences: Sequence[tuple[Fence, Readings]]
) -> RanksEvidence:
    """Return what there is to know of every rank: a collective call.

    ``fences`` are those of this rank's stream, with the readings that followed each.
    """
    # What is compiled would not let anything listen; what ranks say does not depend on it.
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
    """Return the time of a step in which no other rank takes part, None where there is none."""
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
