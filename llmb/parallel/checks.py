"""Refuses options that several ranks cannot run with, before any process starts.

Example: ``--tp 3`` for a model with 32 attention heads.
"""

from __future__ import annotations

from collections.abc import Iterator

from llmb.config import SPLITS_BACKWARD, Mode, RunConfig, RunRequest
from llmb.errors import UsageError
from llmb.families import family_of
from llmb.reference.shapes import Shape


def check(request: RunRequest, mode: Mode, shape: Shape) -> None:
    """Check whether the ranks of ``request`` can share a model of ``shape``.

    Raises:
        UsageError: they cannot; the message names the first fault.
    """
    for fault in _faults(request, mode, shape):
        raise UsageError(fault)


def _faults(request: RunRequest, mode: Mode, shape: Shape) -> Iterator[str]:
    mesh = request.parallelism
    if mesh.world_size == 1:
        return
    if mode is not Mode.TRAIN:
        yield f"--mode {mode.value} runs on one rank: leave --nproc out"
    if request.batch_size == "auto":
        yield "--batch-size auto searches on one rank: search there, and give the size it finds"
    if request.executor == "thunder":
        yield from _thunder(request, shape)
    if mesh.pp > 1:
        yield from _stages(request, shape)
    if mesh.tp > 1:
        yield from _slices(request, shape)
    elif mesh.sequence_parallel or mesh.loss_parallel:
        flag = "--sequence-parallel" if mesh.sequence_parallel else "--loss-parallel"
        yield f"{flag} shares work among the ranks of --tp: give --tp 2 or more"


def _thunder(request: RunRequest, shape: Shape) -> Iterator[str]:
    mesh = request.parallelism
    if mesh.dp_replicate > 1 and mesh.dp_shard > 1:
        yield (
            "--executor thunder replicates or shards, and not both: leave --dp-replicate "
            f"{mesh.dp_replicate} or --dp-shard {mesh.dp_shard} out"
        )
    if mesh.dp_shard > 1 and getattr(shape, "dropout", 0.0) > 0:
        # The audit turns dropout off in the model, but thunder has traced a copy of the model.
        yield "--executor thunder does not shard models with dropout: leave --dp-shard out"


def _stages(request: RunRequest, shape: Shape) -> Iterator[str]:
    mesh, count = request.parallelism, request.accumulate
    pp, schedule = f"--pp {mesh.pp}", f"--schedule {mesh.schedule}"
    family = family_of(shape)
    if not family.has_stages:
        yield f"{pp} cuts no {family.title} models into stages: use --dp-shard"
        return
    if request.executor != "eager":
        yield f"{pp} runs with --executor eager"
    if request.mixed_precision:
        yield f"{pp} runs without --mixed-precision: a schedule goes back within the forward pass"
    if request.dynamic:
        yield f"{pp} runs without --dynamic: stages hand over states of one size"
    if mesh.stages > shape.num_hidden_layers:
        yield (
            f"{pp} {schedule} makes {mesh.stages} stages, and the model has "
            f"{shape.num_hidden_layers} layers"
        )
    if mesh.schedule == "1F1B" and count < mesh.pp:
        yield f"{schedule} takes {mesh.pp} micro-batches or more, not --accumulate {count}"
    if mesh.schedule == "DualPipeV" and count < mesh.stages:
        yield f"{schedule} takes {mesh.stages} micro-batches or more, not --accumulate {count}"
    if mesh.schedule.startswith("Interleaved") and count % mesh.pp:
        yield f"{schedule} takes a multiple of {mesh.pp} micro-batches, not --accumulate {count}"
    if mesh.schedule in SPLITS_BACKWARD:
        if mesh.dp_shard > 1 and mesh.reshard_after_forward:
            yield (
                f"{schedule} goes backward twice, and --dp-shard {mesh.dp_shard} would give the "
                "gathered parameters back before: add --zero 2"
            )
        if request.sac_freq == "op":
            yield f"{schedule} goes backward twice, and --sac-freq op can do that once: use Q/P"


def check_precision(config: RunConfig, shape: Shape) -> None:
    """Check whether the ranks can compute in the precision of ``config``.

    Raises:
        UsageError: a pipeline with autocast or with float16 (float16 needs a scaled loss, and a
            schedule runs the backward pass itself), or tensor parallelism with 16-bit weights
            for a family with ``slices_are_wide``. Example: GPT-2 in BF16 with ``--tp 2``.
    """
    narrow = config.precision.dtype != "float32" and not config.mixed_precision
    if config.parallelism.tp > 1 and family_of(shape).slices_are_wide and narrow:
        # Rules E1 and G1 would accuse honest runs (docs/adr/0028).
        raise UsageError(
            f"--tp {config.parallelism.tp} slices {family_of(shape).title} with weights in "
            "float32: add --mixed-precision, or --precision FP32"
        )
    if config.parallelism.pp == 1:
        return
    pp = f"--pp {config.parallelism.pp}"
    if config.mixed_precision:
        raise UsageError(
            f"{pp} runs without autocast, in which {config.workload} is trained: add "
            "--no-mixed-precision"
        )
    if config.precision.dtype == "float16":
        raise UsageError(f"{pp} does not run in {config.precision.name}: give another --precision")


def _slices(request: RunRequest, shape: Shape) -> Iterator[str]:
    mesh = request.parallelism
    family = family_of(shape)
    if not family.shares_sequences and (mesh.sequence_parallel or mesh.loss_parallel):
        flag = "--sequence-parallel" if mesh.sequence_parallel else "--loss-parallel"
        yield f"{flag} is not for {family.title} models: leave it out"
    if request.executor != "eager":
        yield f"--tp {mesh.tp} runs with --executor eager"
    for what, size in (
        ("attention heads", shape.num_attention_heads),
        ("key-value heads", family.key_value_heads(shape)),
        ("columns of the feed-forward network", shape.intermediate_size),
        ("words of the vocabulary", shape.vocab_size),
    ):
        if size % mesh.tp:
            do = f"use a divisor of {size}" if size > 1 else "leave --tp out"
            yield f"--tp {mesh.tp} does not divide the {size} {what}: {do}"
    if mesh.sequence_parallel and shape.sequence_length % mesh.tp:
        yield (
            f"--sequence-parallel: --tp {mesh.tp} does not divide the sequence of "
            f"{shape.sequence_length} tokens"
        )
