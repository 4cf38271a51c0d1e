"""Selective activation checkpointing of a model's blocks, in place, with no name changed."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

from llmb.errors import UnavailableError, UsageError
from llmb.reference.models import blocks_of
from llmb.reference.shapes import Shape
from llmb.workloads.checkpointing import parse

#: Operators kept by ``op``: matrix products and attention, which are expensive to recompute.
_KEPT = frozenset(
    getattr(torch.ops.aten, name)
    for name in (
        "mm",
        "addmm",
        "bmm",
        "baddbmm",
        "_scaled_dot_product_flash_attention",
        "_scaled_dot_product_flash_attention_for_cpu",
        "_scaled_dot_product_efficient_attention",
        "_scaled_dot_product_cudnn_attention",
        "_scaled_dot_product_fused_attention_overrideable",
    )
    if hasattr(torch.ops.aten, name)
)


def checkpoint_blocks(model: nn.Module, shape: Shape, frequency: str) -> None:
    """Let the blocks of ``model`` named by ``frequency`` recompute activations.

    A block's class is replaced by a class with a checkpointed ``forward``: names, parameters and
    state stay unchanged.

    Raises:
        UsageError: the plugin's post-processing has left no blocks to find.
        UnavailableError: a block has a ``forward`` on the object itself, which would be called in
            place of the class's, or refuses another class.
    """
    chosen = parse(frequency)
    kinds: dict[str, type[nn.Module]] = {}
    for number, block in enumerate(_blocks(model, shape)):
        if chosen is None or chosen.has(number):
            if "forward" in vars(block):
                raise UnavailableError(
                    f"--sac-freq: the plugin's post-processing gave block {number} a forward of "
                    "its own, which would leave checkpointing out: leave the flag out, or let the "
                    "plugin replace the module or its class"
                )
            name = type(block).__qualname__
            if name not in kinds:
                kinds[name] = _checkpointed(type(block), chosen is None)
            block.__class__ = kinds[name]
            if type(block) is not kinds[name]:
                raise UnavailableError(
                    f"--sac-freq: block {number} keeps its class {name}, which would leave "
                    "checkpointing out: leave the flag out, or let the class be replaced"
                )


def _blocks(model: nn.Module, shape: Shape) -> list[nn.Module]:
    try:
        blocks = list(blocks_of(model, shape))
    except AttributeError:
        blocks = []
    if len(blocks) != shape.num_hidden_layers:
        raise UsageError(
            "--sac-freq: after the plugin's post-processing the model has no blocks of its own any "
            "more: leave it out, or use another option of the plugin"
        )
    return blocks


def _checkpointed(kind: type[nn.Module], by_operation: bool) -> type[nn.Module]:
    """Return ``kind`` with a forward pass that recomputes activations."""
    more: dict[str, Any] = {}
    if by_operation:
        more["context_fn"] = partial(create_selective_checkpoint_contexts, _policy)
    plain: Callable[..., Any] = kind.forward

    def forward(self: nn.Module, *arguments: Any) -> Any:
        return checkpoint(partial(plain, self), *arguments, use_reentrant=False, **more)

    return type(f"Checkpointed{kind.__name__}", (kind,), {"forward": forward})


def _policy(context: object, operator: Any, *arguments: Any, **named: Any) -> CheckpointPolicy:
    kept = getattr(operator, "overloadpacket", operator) in _KEPT
    return CheckpointPolicy.MUST_SAVE if kept else CheckpointPolicy.PREFER_RECOMPUTE
