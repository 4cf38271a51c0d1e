"""The isolating probes: weights with which a single pass shows each branch of the model alone.

Probe ``branches``: a branch is the attention or the feed-forward of a layer. Each branch may write
only into its own channels, faintly. The embeddings write into none of the branches' channels, or
far more faintly still. No error travels between branches: the gradients of a branch's matrices show
only that branch's rounding, and the head's gradient in the branch's channels shows the branch's
output. Probe ``head``: all branches are silent and the final gain is high enough to make the
softmax sharp; the gradients then show how exactly the logits were computed.

Where norms subtract the mean, the mean would hide faint values: embeddings then come in pairs of
opposite channels, with mean zero. Where the head is also an embedding, the output of a branch shows
in the rows of tokens that are not in the input. Where the head is the only embedding (Qwen3), a
state is its token's own row: the last norm's gain has alternating signs there, or the logit of that
token would dwarf all others.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from llmb.families import ProbeParts, family_of
from llmb.observe.first_model import float32_by_default
from llmb.records.seeds import derive
from llmb.reference.data import Batch, make_batch
from llmb.reference.loss import IGNORED
from llmb.reference.shapes import Shape

BRANCHES, HEAD = "branches", "head"
PROBES = (BRANCHES, HEAD)

#: Branches are 2**-12 times as large as the embedding: far below the embedding's rounding, and
#: exact in every binary format. 2**-6 stays above the rounding of a mean in float32, and above a
#: tied head's own values in the channels. FP16 cannot represent gradients that small.
_FAINT, _FAINT_TIED = 12, 6
_FAINT_FP16 = 0
#: Scale of the branches' channels in an embedding that is also the head.
_QUIET = 2.0**-8
#: The last norm's gain of the probe ``branches`` in FP16, for a vocabulary of more words than this.
#: A sum of 65,504 equal exponentials overflows in torch's softmax on a CPU, and so does the loss.
_MANY_WORDS, _APART_FP16 = 2**15, 32.0
_SHARP = 4.0  # standard deviation of the logits in the probe ``head``
_LOUD = 64.0  # factor of positions and tokens
#: Scale of BERT's last matrix: this near zero, GELU is a straight line to within 2**-20. FP16
#: numbers have four bits near 2**-20, and full precision near 2**-8.
_STRAIGHT, _STRAIGHT_FP16 = 2.0**-20, 2.0**-8
#: Targets that the probe ``head`` needs: with two targets, a single target decides the error.
_TARGETS = 64


@dataclass(frozen=True)
class Channels:
    """The range of hidden channels that a branch may write into."""

    first: int
    width: int

    @property
    def slice(self) -> slice:
        """The channels as an index."""
        return slice(self.first, self.first + self.width)


def parts(shape: Shape) -> ProbeParts:
    """Return the parameters that the probes edit in the model of ``shape``."""
    return family_of(shape).probe_parts(shape)


def channels(shape: Shape) -> dict[str, Channels]:
    """Return the channels of each branch, by out-projection name; half the channels stay free.

    Empty if the model has too few channels to give each branch a channel.
    """
    names = parts(shape).out
    width = shape.hidden_size // (2 * len(names)) if names else 0
    base = shape.hidden_size - width * len(names)
    return {n: Channels(base + i * width, width) for i, n in enumerate(names)} if width else {}


def edits(probe: str, shape: Shape, dtype: str) -> Mapping[str, Callable[[Tensor], Tensor]]:
    """Return name -> edit of the parameter under ``probe``; other parameters stay.

    ``dtype`` is the compute dtype of a run, such as ``bfloat16``. Every edit is exact in any binary
    format, down to the smallest normal number.
    """
    return _head(shape) if probe == HEAD else _branches(shape, dtype)


def _head(shape: Shape) -> dict[str, Callable[[Tensor], Tensor]]:
    # Logits of normalised states times N(0, range): the deviation is range * sqrt(hidden).
    model = parts(shape)
    present = shape.initializer_range * math.sqrt(shape.hidden_size)
    gain = 2.0 ** round(math.log2(_SHARP / present))
    found: dict[str, Callable[[Tensor], Tensor]] = {
        **dict.fromkeys((*model.out, *model.biases), torch.zeros_like),
        family_of(shape).last_norm: lambda value: _gain(value, gain, model),
    }
    if model.tied and model.between is None:  # Qwen3 has no other embedding
        # Otherwise the state is mostly the token's own vector, and that logit dwarfs all others.
        found |= dict.fromkeys(model.embeddings, lambda value: value * _LOUD)
    return found


def _branches(shape: Shape, dtype: str) -> dict[str, Callable[[Tensor], Tensor]]:
    model, own, is_fp16 = parts(shape), channels(shape), dtype == "float16"
    power = _FAINT_TIED if model.tied else _FAINT
    faint = 2.0 ** -(_FAINT_FP16 if is_fp16 else power)
    straight = _STRAIGHT_FP16 if is_fp16 else _STRAIGHT
    kept = {name: own.get(name) for name in model.out}
    kept |= {bias: own.get(name) for bias, name in zip(model.biases, model.out, strict=False)}
    found = {name: _only_rows(channels, faint) for name, channels in kept.items()}
    gain = _APART_FP16 if is_fp16 and shape.vocab_size > _MANY_WORDS else 1.0
    found[family_of(shape).last_norm] = lambda value: _gain(value, gain, model)
    if not own:
        return found
    first = min(c.first for c in own.values())
    found |= dict.fromkeys(model.embeddings, _scaled_from(first, 0.0, centred=model.centred))
    if model.tied:  # a silent channel would give no logit at all
        found[model.head] = _scaled_from(first, _QUIET, centred=model.centred)
    found |= dict.fromkeys(model.offsets, torch.zeros_like)
    found |= dict.fromkeys(model.gains, torch.ones_like)
    if model.between is not None:
        found[model.between] = lambda value: (torch.eye(len(value)) * straight).to(value)
    return found


def _gain(value: Tensor, size: float, model: ProbeParts) -> Tensor:
    gain = torch.full_like(value, size)
    if model.tied and not model.embeddings:
        gain[1::2] = -size
    return gain


def _scaled_from(first: int, scale: float, *, centred: bool) -> Callable[[Tensor], Tensor]:
    """Scale the channels from ``first`` on; turn earlier channels into pairs of opposites."""

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


@float32_by_default()
def batch(seed: int, probe: str, shape: Shape) -> Batch:
    """Return the single sequence of ``probe``, on the CPU.

    In ``head``, if fewer than 64 tokens are targets, all tokens become targets. Example: of 16
    tokens, BERT would have two targets.
    """
    made = make_batch(token_seed(seed, probe), 1, shape)
    is_target = made.labels != IGNORED
    if probe != HEAD or is_target.all() or is_target.sum() >= _TARGETS:
        return made
    return replace(made, labels=torch.where(is_target, made.labels, made.ids))


def token_seed(seed: int, probe: str) -> int:
    """Return the seed of the tokens of ``probe``."""
    return derive("probe", seed, probe)
