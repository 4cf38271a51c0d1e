"""The isolating probes: weights under which one pass shows every branch of the model by itself.

``branches``: each branch (attention or feed-forward of one layer) may write only into channels of
its own, faintly, and the embeddings write into none of those, or much more faintly still. No error
travels from one branch to another: the gradients of a branch's matrices show its own rounding
alone, and the head's gradient in its channels shows what it put out. ``head``: all branches are
silent and the final gain is so high that the softmax is sharp, so the gradients show how exactly
the logits were computed.

Where norms take the mean away, it would cover what is faint: there embeddings come in pairs of
opposite channels, whose mean is zero. Where the head is an embedding, what a branch puts out shows
in the rows of tokens that are not in the input.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from llmb.families import ProbeParts, family_of
from llmb.reference.data import Batch, make_batch
from llmb.reference.loss import IGNORED
from llmb.reference.shapes import Shape

BRANCHES, HEAD = "branches", "head"
PROBES = (BRANCHES, HEAD)

#: Branches are this faint beside the embedding: 2**-12 is far below their own rounding and exact in
#: every binary format; where a mean is taken away, 2**-6 stays above the rounding of that in
#: float32. FP16 has no room for gradients that small.
_FAINT, _FAINT_CENTRED = 12, 6
_FAINT_FP16 = 0
#: What an embedding that is the head, too, keeps in the branches' channels.
_QUIET = 2.0**-8
_SHARP = 4.0  # standard deviation of the logits in the probe ``head``
_LOUD = 64.0  # times: positions beside tokens
#: What BERT's last matrix is scaled by: so near zero GELU is a straight line to within 2**-20.
#: Numbers of FP16 have four bits there, and all of theirs near 2**-8.
_STRAIGHT, _STRAIGHT_FP16 = 2.0**-20, 2.0**-8
#: Targets from which on the probe ``head`` tells enough: of two, one alone decides the error.
_TARGETS = 64


@dataclass(frozen=True)
class Channels:
    """Which of the hidden channels a branch may write into."""

    first: int
    width: int

    @property
    def slice(self) -> slice:
        """The channels as an index."""
        return slice(self.first, self.first + self.width)


def parts(shape: Shape) -> ProbeParts:
    """Return what the probes are about in the model of ``shape``."""
    return family_of(shape).probe_parts(shape)


def channels(shape: Shape) -> dict[str, Channels]:
    """Return each branch's own channels, by the name of its out-projection; half are nobody's.

    Empty where there are not enough channels for every branch to have one.
    """
    names = parts(shape).out
    width = shape.hidden_size // (2 * len(names)) if names else 0
    base = shape.hidden_size - width * len(names)
    return {n: Channels(base + i * width, width) for i, n in enumerate(names)} if width else {}


def edits(probe: str, shape: Shape, dtype: str) -> Mapping[str, Callable[[Tensor], Tensor]]:
    """Return name -> what becomes of the parameter under ``probe``; the others stay.

    ``dtype`` is the one a run computes in (torch's name). Every edit is exact in any binary format,
    down to the smallest normal number.
    """
    return _head(shape) if probe == HEAD else _branches(shape, dtype)


def _head(shape: Shape) -> dict[str, Callable[[Tensor], Tensor]]:
    # Logits of normalised states times N(0, range): their deviation is range * sqrt(hidden).
    model = parts(shape)
    present = shape.initializer_range * math.sqrt(shape.hidden_size)
    gain = 2.0 ** round(math.log2(_SHARP / present))
    found: dict[str, Callable[[Tensor], Tensor]] = {
        **dict.fromkeys((*model.out, *model.biases), torch.zeros_like),
        family_of(shape).last_norm: lambda value: torch.full_like(value, gain),
    }
    if model.tied and model.between is None:
        # A state that is mostly the token's own vector would make its logit dwarf all others.
        found |= dict.fromkeys(model.embeddings, lambda value: value * _LOUD)
    return found


def _branches(shape: Shape, dtype: str) -> dict[str, Callable[[Tensor], Tensor]]:
    model, own, is_fp16 = parts(shape), channels(shape), dtype == "float16"
    power = _FAINT_CENTRED if model.centred else _FAINT
    faint = 2.0 ** -(_FAINT_FP16 if is_fp16 else power)
    straight = _STRAIGHT_FP16 if is_fp16 else _STRAIGHT
    kept = {name: own.get(name) for name in model.out}
    kept |= {bias: own.get(name) for bias, name in zip(model.biases, model.out, strict=False)}
    found = {name: _only_rows(channels, faint) for name, channels in kept.items()}
    found[family_of(shape).last_norm] = torch.ones_like
    if not own:
        return found
    first = min(c.first for c in own.values())
    found |= dict.fromkeys(model.embeddings, _scaled_from(first, 0.0, centred=model.centred))
    if model.tied:  # what is silent here would have no logit at all
        found[model.head] = _scaled_from(first, _QUIET, centred=model.centred)
    found |= dict.fromkeys(model.offsets, torch.zeros_like)
    found |= dict.fromkeys(model.gains, torch.ones_like)
    if model.between is not None:
        found[model.between] = lambda value: (torch.eye(len(value)) * straight).to(value)
    return found


def _scaled_from(first: int, scale: float, *, centred: bool) -> Callable[[Tensor], Tensor]:
    """Scale the channels from ``first`` on; of those before make pairs of opposite ones."""

    def edit(value: Tensor) -> Tensor:
        base, own = value[:, :first], value[:, first:]
        own = own * scale if scale else torch.zeros_like(own)
        if not centred:
            return torch.cat((base, own), dim=1)
        half = value[:, 0 : first - first % 2 : 2]
        pairs = torch.stack((half, -half), dim=2).flatten(1)
        left = torch.zeros_like(value[:, : first % 2])
        return torch.cat((pairs, left, own), dim=1)

    return edit


def _only_rows(kept: Channels | None, scale: float) -> Callable[[Tensor], Tensor]:
    def edit(value: Tensor) -> Tensor:
        if kept is None:
            return value * scale
        edited = torch.zeros_like(value)
        edited[kept.slice] = value[kept.slice] * scale
        return edited

    return edit


def batch(seed: int, probe: str, shape: Shape) -> Batch:
    """Return the one sequence of ``probe``, on the CPU.

    In ``head``, where fewer than 64 tokens are targets, all are: of BERT's 16 tokens two would be.
    """
    made = make_batch(token_seed(seed, probe), 1, shape)
    is_target = made.labels != IGNORED
    if probe != HEAD or is_target.all() or is_target.sum() >= _TARGETS:
        return made
    return replace(made, labels=torch.where(is_target, made.labels, made.ids))


def token_seed(seed: int, probe: str) -> int:
    """Return the seed of the tokens of ``probe``."""
    digest = hashlib.sha256(f"probe:{seed}:{probe}".encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1
