"""Where the units of the probe ``pairs`` lie in a model: channels, heads, rows and words.

``llmb.observe.pairs`` writes them, and ``llmb.observe.pairs_seen`` reads them.
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

#: Size of weights that are all the same; those of pairs lie around it.
A = 45 / 32
IN_GROUP = 5  # hidden channels that are equal in every token
FEWEST_GROUPS, _MOST_GROUPS = 4, 32
SETS, _FEWEST_SETS = 16, 4  # pairs of each kind in the feed-forward
TRIPLES = 4
#: Every how many layers have silent channels; how many pairs of them v has (its errors may cancel)
#: and the head (its words differ little, and one sum over them may cancel), the transform half as
#: many as the head; and how many groups must have room beside them: the first that fits.
_SILENCE = (
    (1, 4, 8, 16),
    (1, 1, 8, FEWEST_GROUPS),
    (2, 1, 8, FEWEST_GROUPS),
    (2, 1, 4, FEWEST_GROUPS),
)
#: Value rows of a head: a pair and two triples for every 16 channels of the head, four times at
#: most; then at most so many times a pair, a triple and a pair, each of equal rows.
_SINGLE_VALUES, _PER_CHANNELS, _MOST_SINGLE_VALUES = 8, 16, 4
_EQUAL_VALUES, _MOST_EQUAL_VALUES = 7, 8
_HEADS = 4
_MOST_WORDS = 256
_OWN = 4  # channels of a branch that are needed
_SCORES = 2.0  # standard deviation
#: What the key/value head beside the base is for, where several query heads share one.
_SHARED_ROLES = ("q", "k", "equal", "exchanged")


def obstacle(shape: Shape) -> str | None:
    """Return why the probe cannot be made of a model of ``shape``, None where it can."""
    family = PairsFamily(shape)
    if shape.hidden_size % family.copies:
        return (
            f"the probe needs an even number of hidden channels, the model has {shape.hidden_size}"
        )
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
    """Return the key/value head of each role: the base, its equal, and heads computed otherwise.

    Where query heads share a key/value head, the base's second query head attends to all tokens
    alike. Example: with 2 key/value heads layer 0 has the roles base and q, layer 1 base and k.
    """
    heads = family.key_value_heads
    if family.shape.num_attention_heads > heads:
        others = min(len(_SHARED_ROLES), heads - 1)
        first = layer * others  # what has no place in this layer comes first in the next
        taken = (_SHARED_ROLES[(first + n) % len(_SHARED_ROLES)] for n in range(others))
        return {role: n for n, role in enumerate(("base", *taken))}
    every: tuple[str, ...] = ("base", "q", "k", "equal", "exchanged", "even")
    if heads < len(every):
        every = every[:4] if layer % 2 == 0 else (every[0], *every[3:])
    return {role: n for n, role in enumerate(every)}


def _silence(family: PairsFamily) -> dict[tuple[str, int], int]:
    """Return how many pairs of silent channels a matrix has, by kind and layer.

    A deep and narrow model has room for every second layer only.
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
    """Return the channels that are left for groups of equals."""
    base = min((c.first for c in family.own.values()), default=0)
    return base - 2 * sum(silence.values()) - 4 * TRIPLES


@dataclass(frozen=True)
class Own:
    """What a branch writes into: pairs of channels for its own product, and for the way back."""

    forward: Tensor  # [n, 2]
    back: Tensor  # [n, 2]


class PairsLayout:
    """Where everything lies in a model of one shape, which has no ``obstacle``."""

    def __init__(self, shape: Shape) -> None:
        """Divide channels, heads and rows."""
        self.shape, self.family = shape, PairsFamily(shape)
        #: Query heads of a key/value head. Only the first of them has queries that are not zero.
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
        """Return the channels that the branch ``kind`` ("o", "down") of a layer writes into."""
        channels = self.family.own[kind, layer]
        count = min(SETS, channels.width // 4)
        every = torch.arange(channels.first, channels.first + 4 * count).view(-1, 2)
        return Own(every[:count], every[count:])

    def block(self, kind: str, head: int) -> slice:
        """Return the rows of q, k or v (columns of o) that a key/value ``head`` has.

        Of q and o these are its first query head's.
        """
        width = self.shape.head_dim
        first = head * width * (self.sharing if kind in ("q", "o") else 1)
        return slice(first, first + width)

    @property
    def pairs_of_words(self) -> tuple[tuple[int, int], tuple[int, int]]:
        """Where in the vocabulary pairs lie whose logits are computed apart, and equal ones."""
        vocab, half = self.shape.vocab_size, self.shape.vocab_size // 2
        quarter = min(_MOST_WORDS, (vocab - half) // 4 * 2)
        return (half, half + quarter), (half + quarter, half + 2 * quarter)

    @property
    def level(self) -> float:
        """What a channel of size 1 is after the norm, about."""
        return math.sqrt(self.family.hidden / max(1, self.groups.numel() + 3 * TRIPLES))

    @property
    def _score_of_one(self) -> float:
        """The standard deviation of scores of queries and keys of scale 1, about."""
        return 15 * A * A * self.deviation**2

    @property
    def scale_of_scores(self) -> float:
        """What queries and keys are multiplied by, a power of two."""
        return power(math.sqrt(_SCORES / self._score_of_one))

    @property
    def deviation_of_scores(self) -> float:
        """The standard deviation of scores, about."""
        return self._score_of_one * self.scale_of_scores**2

    @property
    def deviation(self) -> float:
        """The standard deviation of a sum of one channel of each group, with signs, about."""
        return self.family.copies * self.level * math.sqrt(len(self.groups))


class FeedForwardRows:
    """Which channels of the feed-forward do what."""

    EACH = 13

    def __init__(self, width: int) -> None:
        """Divide as many of ``width`` channels as are needed."""
        sets = min(SETS, width // self.EACH)
        take = _Taking(sets)
        #: A base, one whose gate is computed apart, and one whose other product is.
        self.apart = take(3)
        self.triples = take(3)
        self.equal, self.equal_back, self.also_equal = take(2), take(3), take(2)


class ValueRows:
    """Which channels of a head's values do what."""

    def __init__(self, width: int) -> None:
        singles = min(_MOST_SINGLE_VALUES, max(1, width // _PER_CHANNELS))
        take = _Taking(singles)
        #: A base, and one that is computed apart.
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
    """Return the power of two that is nearest to ``value``."""
    return 2.0 ** round(math.log2(value))
