"""Search for the fastest layouts of one job, with the reasons against the remaining layouts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace

from llmb.errors import UsageError
from llmb.projection.hardware_files import Hardware
from llmb.projection.job import RECOMPUTE, Job, Model
from llmb.projection.step_time import Constants, ProjectedStep, step_time
from llmb.workloads.memory import LLMB, Memory, StorageRecipe

#: Searched values: sequences per micro-batch, and pipeline stages per rank.
_MICRO_BATCHES = (1, 2, 4, 8)
_VIRTUAL = (1, 2, 4, 8)
#: Largest searched ``pp`` and ``tp``.
_MOST_STAGES, _MOST_SLICES = 256, 64


@dataclass(frozen=True)
class SearchResult:
    """One layout with its time and memory."""

    job: Job
    time: ProjectedStep
    memory: Memory


@dataclass(frozen=True)
class Search:
    """The layouts within a device's memory, fastest first, and counts of the rejected layouts."""

    best: tuple[SearchResult, ...]
    #: The fastest layout of each (tp, pp), to compare the choices. Example: tp 8, pp 4.
    by_mesh: tuple[SearchResult, ...]
    tried: int
    #: Reason -> number of layouts. Example: ``{"needs more memory than a device has": 12}``.
    left_out: dict[str, int]


def search(
    model: Model,
    devices: int,
    sequences: int,
    hardware: Hardware,
    constants: Constants,
    keep: int = 10,
    stored: StorageRecipe = LLMB,
) -> Search:
    """Return the fastest layouts of a step of ``sequences`` on ``devices``.

    Raises:
        UsageError: no layout divides model and sequences, or every layout needs too much memory.
    """
    left_out: Counter[str] = Counter()
    found: dict[tuple[int, int], SearchResult] = {}
    best: list[SearchResult] = []
    tried = 0
    for job in _layouts(Job(model, stored=stored), devices, sequences, left_out):
        tried += 1
        memory = job.memory
        if memory.fits(hardware.memory_bytes) == "no":
            left_out["needs more memory than a device has"] += 1
            continue
        one = SearchResult(job, step_time(job, hardware, constants), memory)
        best.append(one)
        mesh = (job.tp, job.pp)
        if mesh not in found or one.time.total < found[mesh].time.total:
            found[mesh] = one
        if len(best) > 4 * keep:
            best = _fastest(best)[:keep]
    if not tried:
        raise UsageError(
            f"no layout of {devices:,} devices divides the model and its {sequences:,} sequences: "
            "try another --world-size or --global-batch"
        )
    if not best:
        raise UsageError(
            f"none of {tried:,} layouts on {devices:,} devices fits into "
            f"{hardware.memory_bytes / 1e9:,.0f} GB a device: use more devices"
        )
    return Search(
        tuple(_fastest(best)[:keep]), tuple(_fastest(list(found.values()))), tried, dict(left_out)
    )


def _fastest(found: list[SearchResult]) -> list[SearchResult]:
    """Sort by time, then by fewer pipeline stages, then by less memory."""
    return sorted(found, key=lambda one: (one.time.total, one.job.pp, one.memory.total))


def _layouts(plain: Job, devices: int, sequences: int, left_out: Counter[str]) -> Iterator[Job]:
    model = plain.model
    for tp in _divisors(devices, _MOST_SLICES):
        for pp in _divisors(devices // tp, _MOST_STAGES):
            base = replace(plain, dp=devices // (tp * pp), tp=tp, pp=pp)
            try:
                base.check()
            except UsageError:
                left_out["does not divide heads, widths or layers"] += 1
                continue
            sliced = replace(base, sequence_parallel=tp > 1 and model.sequence % tp == 0)
            yield from _batches(sliced, sequences, left_out)


def _batches(base: Job, sequences: int, left_out: Counter[str]) -> Iterator[Job]:
    for micro in _MICRO_BATCHES:
        parts, rest = divmod(sequences, base.dp * micro)
        if rest or not parts:
            left_out["does not divide the sequences of a step"] += 1
            continue
        for virtual in _VIRTUAL if base.pp > 1 else (1,):
            if base.model.layers % (base.pp * virtual) or (virtual > 1 and parts % base.pp):
                continue
            for zero in (0, 1, 3) if base.dp > 1 else (0,):
                if zero == 3 and base.pp > 1:
                    continue  # would gather weights for every micro-batch
                for recompute in RECOMPUTE:
                    if recompute == "attention" and base.fused_attention:
                        continue  # fused attention stores no scores to recompute
                    yield replace(
                        base,
                        micro_batch=micro,
                        micro_batches=parts,
                        virtual_stages=virtual,
                        zero=zero,
                        recompute=recompute,
                    )


def _divisors(number: int, most: int) -> list[int]:
    return [n for n in range(1, min(number, most) + 1) if number % n == 0]
