"""Positions of the units of the probe ``pairs`` in a model: channels, heads, rows and words.

``llmb.observe.pairs`` writes the units, and ``llmb.observe.pairs_seen`` reads the gradients.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from llmb.families import TRANSFORM
from llmb.observe.pairs_family import PairsFamily
from llmb.reference.shapes import Shape

#: Size of weights that are all equal; the weights of pairs lie around A.
A = 45 / 32
IN_GROUP = 5  # hidden channels that are equal in every token
FEWEST_GROUPS, _MOST_GROUPS = 4, 32
SETS, _FEWEST_SETS = 16, 4  # pairs of each kind in the feed-forward
TRIPLES = 4
#: Silent channels, in order of preference: the first row that fits is used. Columns: in every how
#: many layers; pairs for v (errors may cancel); pairs for the head (the head's words differ little,
#: and a sum over the words may cancel), with half as many for the transform; groups that must fit.
_SILENCE = (
    (1, 4, 8, 16),
    (1, 1, 8, FEWEST_GROUPS),
    (2, 1, 8, FEWEST_GROUPS),
    (2, 1, 4, FEWEST_GROUPS),
)
#: Value rows of a head: a pair and two triples for every 16 channels of the head, at most 4 times;
#: then, at most 8 times, a pair, a triple and a pair, each of equal rows.
_SINGLE_VALUES, _PER_CHANNELS, _MOST_SINGLE_VALUES = 8, 16, 4
_EQUAL_VALUES, _MOST_EQUAL_VALUES = 7, 8
_HEADS = 4
_MOST_WORDS = 256
_OWN = 4  # channels that a branch needs
_SCORES = 2.0  # standard deviation
#: Roles of the key/value heads after the base, where query heads share key/value heads.
_SHARED_ROLES = ("q", "k", "equal", "exchanged")


def obstacle(shape: Shape) -> str | None:
    """Return why the probe cannot be made for a model of ``shape``, None if it can."""
    family = PairsFamily(shape)
    if shape.hidden_size % family.copies:
        return (
            f"the probe needs an even number of hidden channels, the model has {shape.hidden_size}"
        )
    if family.normed and shape.head_dim % 4:
        return f"the probe needs heads of a multiple of 4 channels, the model has {shape.head_dim}"
    need = (
        (shape.num_attention_heads, _HEADS, "attention heads"),
        (shape.head_dim, _SINGLE_VALUES + _EQUAL_VALUES, "channels in a head"),
        (
            shape.intermediate_size,
            FeedForwardRows.EACH * _FEWEST_SETS,
            "channels in the feed-forward",
        ),
        (shape.vocab_size, 64, "words"),
        (
            min((c.width for c in family.own.values()), default=0),
            _OWN,
            "hidden channels for each branch to write into",
        ),
        (_free(family, _silence(family)), FEWEST_GROUPS * IN_GROUP, "hidden channels besides"),
    )
    for there, least, what in need:
        if there < least:
            return f"the model has too few {what}: {max(0, there)}, the probe needs {least}"
    return None


def _roles(family: PairsFamily, layer: int) -> dict[str, int]:
    """Return the key/value head of each role: base, equal to the base, or computed differently.

    Where query heads share a key/value head, the base's second query head attends to all tokens
    alike. Example: with 2 key/value heads layer 0 has the roles base and q, layer 1 base and k.
    """
    heads = family.key_value_heads
    if family.shape.num_attention_heads > heads:
        others = min(len(_SHARED_ROLES), heads - 1)
        first = layer * others  # roles without a head in this layer come first in the next
        taken = (_SHARED_ROLES[(first + n) % len(_SHARED_ROLES)] for n in range(others))
        return {role: n for n, role in enumerate(("base", *taken))}
    every: tuple[str, ...] = ("base", "q", "k", "equal", "exchanged", "even")
    if heads < len(every):
        every = every[:4] if layer % 2 == 0 else (every[0], *every[3:])
    return {role: n for n, role in enumerate(every)}


def _silence(family: PairsFamily) -> dict[tuple[str, int], int]:
    """Return the number of silent channel pairs of each matrix, by kind and layer.

    A deep and narrow model has room in some layers only, such as every second layer.
    """
    layers = range(family.shape.num_hidden_layers)
    equal = [i for i in layers if "equal" in _roles(family, i)]
    found: dict[tuple[str, int], int] = {}
    for every, of_values, of_head, groups in _SILENCE:
        found = {("head", 0): of_head}
        if family.transformed:
            found |= {(TRANSFORM, 0): of_head // 2}
        for kind in family.readers:
            heard = equal if kind in ("q", "k") else layers
            found |= {(kind, i): of_values if kind == "v" else 1 for i in heard[::every]}
        if _free(family, found) >= groups * IN_GROUP:
            break
    return found


def _free(family: PairsFamily, silence: Mapping[tuple[str, int], int]) -> int:
    """Return the number of channels left for groups of equal channels."""
    base = min((c.first for c in family.own.values()), default=0)
    return base - 2 * sum(silence.values()) - 4 * TRIPLES


@dataclass(frozen=True)
class Own:
    """Output channels of a branch: pairs for the branch's own product, and for the way back."""

    forward: Tensor  # [n, 2]
    back: Tensor  # [n, 2]


class PairsLayout:
    """Positions of all units in a model of a shape without ``obstacle``."""

    def __init__(self, shape: Shape) -> None:
        """Divide channels, heads and rows."""
        self.shape, self.family = shape, PairsFamily(shape)
        #: Query heads of a key/value head. Only the first query head has nonzero queries.
        self.sharing = shape.num_attention_heads // self.family.key_value_heads
        silence = _silence(self.family)
        groups = min(_MOST_GROUPS, _free(self.family, silence) // IN_GROUP)
        #: Channels [groups, 5] that are equal in every token.
        self.groups = torch.arange(groups * IN_GROUP).view(groups, IN_GROUP)
        at = groups * IN_GROUP
        #: Channels [triples, 4]: alpha + phi, alpha - phi, alpha, phi.
        self.triples = at + torch.arange(4 * TRIPLES).view(TRIPLES, 4)
        at += 4 * TRIPLES
        every = (at + torch.arange(2 * sum(silence.values()))).view(-1, 2)
        #: By kind and layer, pairs of channels that are zero in the input, with gradients.
        self.silent = dict(zip(silence, torch.split(every, [*silence.values()]), strict=True))
        self.rows = FeedForwardRows(shape.intermediate_size)
        self.value_rows = ValueRows(shape.head_dim)

    def roles(self, layer: int) -> dict[str, int]:
        """Return the key/value head of each role in a layer, for example "base" or "even"."""
        return _roles(self.family, layer)

    def own(self, kind: str, layer: int) -> Own:
        """Return the output channels of the branch ``kind`` ("o", "down") of a layer."""
        channels = self.family.own[kind, layer]
        count = min(SETS, channels.width // 4)
        every = torch.arange(channels.first, channels.first + 4 * count).view(-1, 2)
        return Own(every[:count], every[count:])

    def block(self, kind: str, head: int) -> slice:
        """Return the rows of q, k or v (columns of o) of a key/value ``head``.

        For q and o, the rows of the head's first query head.
        """
        width = self.shape.head_dim
        first = head * width * (self.sharing if kind in ("q", "o") else 1)
        return slice(first, first + width)

    @property
    def pairs_of_words(self) -> tuple[tuple[int, int], tuple[int, int]]:
        """Vocabulary ranges of word pairs with logits computed apart, and of equal word pairs."""
        vocab, half = self.shape.vocab_size, self.shape.vocab_size // 2
        quarter = min(_MOST_WORDS, (vocab - half) // 4 * 2)
        return (half, half + quarter), (half + quarter, half + 2 * quarter)

    @property
    def level(self) -> float:
        """Approximate value of a channel of size 1 after the norm."""
        return math.sqrt(self.family.hidden / max(1, self.groups.numel() + 3 * TRIPLES))

    @property
    def _score_of_one(self) -> float:
        """Approximate standard deviation of scores of queries and keys of scale 1."""
        return 15 * A * A * self.deviation**2

    @property
    def scale_of_scores(self) -> float:
        """The factor of queries and keys, a power of two."""
        return power(math.sqrt(_SCORES / self._score_of_one))

    @property
    def deviation_of_scores(self) -> float:
        """Approximate standard deviation of scores."""
        return self._score_of_one * self.scale_of_scores**2

    @property
    def deviation(self) -> float:
        """Approximate standard deviation of a signed sum over a channel of each group."""
        return self.family.copies * self.level * math.sqrt(len(self.groups))


class FeedForwardRows:
    """The feed-forward channels of each purpose."""

    EACH = 13

    def __init__(self, width: int) -> None:
        """Divide as many of ``width`` channels as are needed."""
        sets = min(SETS, width // self.EACH)
        take = _Taking(sets)
        #: Base, a channel with a gate computed apart, and a channel with an up computed apart.
        self.apart = take(3)
        self.triples = take(3)
        self.equal, self.equal_back, self.also_equal = take(2), take(3), take(2)


class ValueRows:
    """The channels of a head's values of each purpose."""

    def __init__(self, width: int) -> None:
        singles = min(_MOST_SINGLE_VALUES, max(1, width // _PER_CHANNELS))
        take = _Taking(singles)
        #: A base channel, and a channel computed apart.
        self.apart = take(2)
        #: For ``o_proj``'s weight gradient, and for the values' rounding in attention.
        self.exact, self.rounded = take(3), take(3)
        first = singles * _SINGLE_VALUES
        take = _Taking(min(_MOST_EQUAL_VALUES, (width - first) // _EQUAL_VALUES), first)
        self.equal, self.equal_back, self.also_equal = take(2), take(3), take(2)


@dataclass
class _Taking:
    """Gives channels away in sets, from the first on."""

    _sets: int
    _next: int = 0

    def __call__(self, size: int) -> Tensor:
        first, self._next = self._next, self._next + self._sets * size
        return torch.arange(first, self._next).view(self._sets, size)


def power(value: float) -> float:
    """Return the power of two nearest to ``value``. Example: 4 for 5."""
    return 2.0 ** round(math.log2(value))
