"""The job of a workload, by default as in its original, and the job of a record."""

from __future__ import annotations

from dataclasses import dataclass

from llmb.config import Mode
from llmb.errors import UsageError
from llmb.projection.job import Job, Model, Recompute
from llmb.records.run_record import RunRecord
from llmb.workloads import Workload
from llmb.workloads.memory import LLMB, RECIPES


@dataclass(frozen=True)
class JobRequest:
    """The options of a user; None: the value of the workload's original."""

    world_size: int | None = None
    global_batch: int | None = None
    tp: int | None = None
    pp: int | None = None
    micro_batch: int | None = None
    virtual_stages: int = 1
    zero: int = 0
    recompute: Recompute = "none"
    sequence_parallel: bool = False
    fused_elementwise: bool = True
    overlapped_tp: bool = False
    #: Name of what the system stores (``llmb.workloads.memory.RECIPES``).
    stored: str = LLMB.name


def devices_of(workload: Workload, asked: JobRequest) -> int:
    """Return the number of devices of the job.

    Raises:
        UsageError: neither request nor workload gives a number, or the workload is not trained.
    """
    if Mode.TRAIN not in workload.modes:
        raise UsageError(f"workload {workload.name!r} is not trained: it has no training step")
    devices = asked.world_size or workload.world_size
    if devices is None:
        raise UsageError(f"{workload.name!r} names no devices: say how many with --world-size")
    return devices


def sequences_of(workload: Workload, asked: JobRequest) -> int:
    """Return the sequences of a step on all devices.

    Raises:
        UsageError: neither request nor workload gives a number.
    """
    devices = devices_of(workload, asked)
    sequences = asked.global_batch or workload.global_batch_size(devices)
    if sequences is None:
        raise UsageError(
            f"{workload.name!r} has no batch of its own on {devices:,} devices: say how many "
            "sequences a step has with --global-batch"
        )
    return sequences


def job_of(workload: Workload, asked: JobRequest) -> Job:
    """Return the job of a request.

    Raises:
        UsageError: the layout does not divide devices, model or sequences. Example: 10 devices
            with ``--tp 4``.
    """
    devices = devices_of(workload, asked)
    tp, pp = asked.tp or workload.tp, asked.pp or workload.pp
    dp, rest = divmod(devices, tp * pp)
    if rest or not dp:
        raise UsageError(
            f"--tp {tp} x --pp {pp} does not divide {devices:,} devices: use another --world-size"
        )
    sequences = sequences_of(workload, asked)
    micro = asked.micro_batch or workload.recipe.micro_batch_size or 1
    parts, rest = divmod(sequences, dp * micro)
    if rest or not parts:
        raise UsageError(
            f"{sequences:,} sequences are not so many micro-batches of {micro} on each of {dp:,} "
            "replicas: use another --global-batch or --micro-batch-size"
        )
    return Job(
        Model.of(workload.shape),
        dp=dp,
        tp=tp,
        pp=pp,
        micro_batch=micro,
        micro_batches=parts,
        virtual_stages=asked.virtual_stages,
        zero=asked.zero,
        recompute=asked.recompute,
        sequence_parallel=asked.sequence_parallel,
        fused_elementwise=asked.fused_elementwise,
        overlapped_tp=asked.overlapped_tp,
        stored=RECIPES[asked.stored],
        moments=workload.recipe.optimizer.moments,
    ).check()


def measured_job(workload: Workload, record: RunRecord) -> Job:
    """Return the job of ``record``, the record of a training run."""
    mesh, config = record.topology.parallelism, record.config
    shards = 3 if getattr(mesh, "reshard_after_forward", True) else 2
    return Job(
        Model.of(workload.shape),
        dp=mesh.replicas,
        tp=mesh.tp,
        pp=getattr(mesh, "pp", 1),
        micro_batch=config.batch_size / config.accumulate,
        micro_batches=config.accumulate,
        zero=shards if mesh.dp_shard > 1 else 0,
        recompute="full" if config.sac_freq not in (None, "op") else "none",
        sequence_parallel=mesh.sequence_parallel,
        fused_elementwise=config.executor != "eager",
    )
