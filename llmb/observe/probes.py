"""The isolating probes: weights under which one pass shows every branch of the model by itself.

``branches``: each branch (attention or feed-forward of one layer) may write only into channels of
its own, faintly, and the embedding writes into none of those. No error travels from one branch to
another: the gradients of a branch's matrices show its own rounding alone, and the head's gradient
in its channels shows what it put out. ``head``: all branches are silent and the final gain is so
high that the softmax is sharp, so the gradients show how exactly the logits were computed.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from llmb.reference.shapes import LlamaShape

BRANCHES, HEAD = "branches", "head"
PROBES = (BRANCHES, HEAD)
EMBEDDING, GAIN, OUT = "model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"

#: Branches are this faint beside the embedding: 2**-12 is far below their own rounding and exact in
#: every binary format. FP16 has no room for gradients that small.
_FAINT = 12
_FAINT_FP16 = 0
_SHARP = 4.0  # standard deviation of the logits in the probe ``head``


@dataclass(frozen=True)
class Channels:
    """Which of the hidden channels a branch may write into."""

    first: int
    width: int

    @property
    def slice(self) -> slice:
        """The channels as an index."""
        return slice(self.first, self.first + self.width)


def out_projections(shape: LlamaShape) -> tuple[str, ...]:
    """Return the names of the matrices through which branches write, two a layer, in order."""
    return tuple(
        f"model.layers.{layer}.{last}.weight"
        for layer in range(shape.num_hidden_layers)
        for last in ("self_attn.o_proj", "mlp.down_proj")
    )


def channels(shape: LlamaShape) -> dict[str, Channels]:
    """Return each branch's own channels, by the name of its out-projection; half are nobody's.

    Empty where there are not enough channels for every branch to have one.
    """
    names = out_projections(shape)
    width = shape.hidden_size // (2 * len(names))
    base = shape.hidden_size - width * len(names)
    return {n: Channels(base + i * width, width) for i, n in enumerate(names)} if width else {}


def edits(probe: str, shape: LlamaShape, dtype: str) -> Mapping[str, Callable[[Tensor], Tensor]]:
    """Return name -> what becomes of the parameter under ``probe``; the others stay.

    ``dtype`` is the one a run computes in (torch's name). Every edit is exact in any binary format,
    down to the smallest normal number.
    """
    if probe == HEAD:
        # Logits of normalised states times N(0, range): their deviation is range * sqrt(hidden).
        present = shape.initializer_range * math.sqrt(shape.hidden_size)
        gain = 2.0 ** round(math.log2(_SHARP / present))
        silent = dict.fromkeys(out_projections(shape), torch.zeros_like)
        return {**silent, GAIN: lambda value: value * gain}
    faint = 2.0 ** -(_FAINT_FP16 if dtype == "float16" else _FAINT)
    own = channels(shape)
    found: dict[str, Callable[[Tensor], Tensor]] = {
        name: _only_rows(own.get(name), faint) for name in out_projections(shape)
    }
    if own:
        first = min(c.first for c in own.values())
        found[EMBEDDING] = lambda value: torch.cat(
            (value[:, :first], torch.zeros_like(value[:, first:])), dim=1
        )
    return found


def _only_rows(kept: Channels | None, scale: float) -> Callable[[Tensor], Tensor]:
    def edit(value: Tensor) -> Tensor:
        if kept is None:
            return value * scale
        edited = torch.zeros_like(value)
        edited[kept.slice] = value[kept.slice] * scale
        return edited

    return edit


def token_seed(seed: int, probe: str) -> int:
    """Return the seed of the tokens of ``probe``."""
    digest = hashlib.sha256(f"probe:{seed}:{probe}".encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1
