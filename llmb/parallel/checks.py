"""What ranks cannot do together, refused before any process starts."""

from __future__ import annotations

from collections.abc import Iterator

from llmb.config import Mode, RunRequest
from llmb.errors import UsageError
from llmb.reference.shapes import BertShape, LlamaShape, Shape


def check(request: RunRequest, mode: Mode, shape: Shape) -> None:
    """Say that the ranks of ``request`` can share a model of ``shape``, or why not.

    Raises:
        UsageError: the first thing that cannot be.
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
        yield "--executor thunder runs on one rank: use eager or inductor"
    if mesh.tp > 1:
        yield from _slices(request, shape)
    elif mesh.sequence_parallel or mesh.loss_parallel:
        flag = "--sequence-parallel" if mesh.sequence_parallel else "--loss-parallel"
        yield f"{flag} shares work among the ranks of --tp: give --tp 2 or more"


def _slices(request: RunRequest, shape: Shape) -> Iterator[str]:
    mesh = request.parallelism
    if not isinstance(shape, (LlamaShape, BertShape)):
        # One matrix makes its queries, keys and values: heads do not lie together in it.
        yield f"--tp {mesh.tp} slices Llama and BERT models, not GPT-2: use --dp-shard"
        return
    if isinstance(shape, BertShape) and (mesh.sequence_parallel or mesh.loss_parallel):
        flag = "--sequence-parallel" if mesh.sequence_parallel else "--loss-parallel"
        yield f"{flag} is for Llama models: leave it out"
    if request.executor != "eager":
        yield f"--tp {mesh.tp} runs with --executor eager"
    for what, size in (
        ("attention heads", shape.num_attention_heads),
        ("key-value heads", getattr(shape, "num_key_value_heads", mesh.tp)),
        ("columns of the feed-forward network", shape.intermediate_size),
        ("words of the vocabulary", shape.vocab_size),
    ):
        if size % mesh.tp:
            yield f"--tp {mesh.tp} does not divide the {size} {what}"
    if mesh.sequence_parallel and shape.sequence_length % mesh.tp:
        yield (
            f"--sequence-parallel: --tp {mesh.tp} does not divide the sequence of "
            f"{shape.sequence_length} tokens"
        )
