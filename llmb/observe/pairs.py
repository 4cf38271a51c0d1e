"""The probe ``pairs``: which significand each matrix product of a training step keeps, by itself.

The weights of the probe make pairs of units that are equal in exact arithmetic and whose operands
are written differently in one product only. Example: ``h_1 = h_2`` in every token, and two rows of
``up_proj`` are ``(A, A)`` and ``(A + F, A - F)``: both give ``2 A h_1``. A product that rounds its
weights to 8 bits gives two different values, and the columns of ``down_proj``'s gradient that
belong to them differ. Whatever else the step rounds, it rounds alike for both, so that a product in
FP8 cannot hide another in FP8. Nothing is compared with a reference: the right difference is zero.

Every parameter is written: gains are 1, biases 0. A sum of two units of the feed-forward stays a
sum: with a gate because both units have equal gates, with GELU because its inputs are 8 or more,
where GELU(x) is x. ``llmb.observe.pairs_family`` has the other differences between families.

Measured is the operand that differs: the weight (forward, input gradient) or the activation (weight
gradient), of QK^T both, of PV the values. Gradients' own rounding is not measured here.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from llmb.observe.pairs_family import TRANSFORM, Family
from llmb.records.precision_recipe import FORWARD, INPUT, PV, QK, WEIGHT, Direction, PairSeen
from llmb.reference.data import MASKED, Batch, make_batch
from llmb.reference.loss import IGNORED
from llmb.reference.shapes import BertShape, Shape

PAIRS = "pairs"
#: Size of weights that are all the same; those of pairs lie around it.
_A = 45 / 32
#: Explicit bits of the significand in which a run's weights are written, two less than float32 has:
#: sums of a pair are to be exact.
_GRID = {"bfloat16": 7, "float16": 10, "float32": 20}
_IN_GROUP = 5  # hidden channels that are equal in every token
_FEWEST_GROUPS, _MOST_GROUPS = 4, 32
_SETS, _FEWEST_SETS = 16, 4  # pairs of each kind in the feed-forward
_TRIPLES = 4
#: Every how many layers have silent channels; how many pairs of them v has (its errors may cancel)
#: and the head (its words differ little, and one sum over them may cancel), the transform half as
#: many as the head; and how many groups must have room beside them: the first that fits.
_SILENCE = (
    (1, 4, 8, 16),
    (1, 1, 8, _FEWEST_GROUPS),
    (2, 1, 8, _FEWEST_GROUPS),
    (2, 1, 4, _FEWEST_GROUPS),
)
#: Value rows of a head: a pair and two triples for every 16 channels of the head, four times at
#: most; then at most so many times a pair, a triple and a pair, each of equal rows.
_SINGLE_VALUES, _PER_CHANNELS, _MOST_SINGLE_VALUES = 8, 16, 4
_EQUAL_VALUES, _MOST_EQUAL_VALUES = 7, 8
_HEADS = 4
_MOST_WORDS = 256
_OWN = 4  # channels of a branch that are needed
_FAINT = 2.0**-6
_SCORES, _LOGITS, _GATES = 2.0, 1.0, 1.0  # standard deviations
#: What the transform multiplies channels by. GELU is half of x there: its mean is far below what is
#: faint. float16 has no room for values that small.
_NEAR_ZERO, _NEAR_ZERO_FP16 = 2.0**-16, 2.0**-6
#: Targets of BERT's probe at least: in a short sequence the share of training would be few.
_TARGETS = 32
_STRAIGHT = 8.0  # from here on GELU is x, and 0 below its negative, to within 2^-40
#: Bits that a forward pair shows beyond those of other pairs, where an error of scores is what
#: shows: measured from E2M1 to float32 with a causal mask, and in E4M3 without one.
_BITS_OF_SCORES = {"q": -0.7, "k": -0.2, QK: 0.3}
_BITS_OF_UNMASKED_SCORES = {"q": -0.4, "k": 0.1, QK: 0.9}
#: What the key/value head beside the base is for, where several query heads share one.
_SHARED_ROLES = ("q", "k", "equal", "exchanged")


def obstacle(shape: Shape) -> str | None:
    """Return why the probe cannot be made of a model of ``shape``, None where it can."""
    family = Family(shape)
    if shape.hidden_size % family.copies:
        return (
            f"the probe needs an even number of hidden channels, the model has {shape.hidden_size}"
        )
    need = (
        (shape.num_attention_heads, _HEADS, "attention heads"),
        (shape.head_dim, _SINGLE_VALUES + _EQUAL_VALUES, "channels in a head"),
        (
            shape.intermediate_size,
            _FeedForwardRows.EACH * _FEWEST_SETS,
            "channels in the feed-forward",
        ),
        (shape.vocab_size, 64, "words"),
        (
            min((c.width for c in family.own.values()), default=0),
            _OWN,
            "hidden channels for each branch to write into",
        ),
        (_free(family, _silence(family)), _FEWEST_GROUPS * _IN_GROUP, "hidden channels besides"),
    )
    for there, least, what in need:
        if there < least:
            return f"the model has too few {what}: {max(0, there)}, the probe needs {least}"
    return None


def _roles(family: Family, layer: int) -> dict[str, int]:
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


def _silence(family: Family) -> dict[tuple[str, int], int]:
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
        if _free(family, found) >= groups * _IN_GROUP:
            break
    return found


def _free(family: Family, silence: Mapping[tuple[str, int], int]) -> int:
    """Return the channels that are left for groups of equals."""
    base = min((c.first for c in family.own.values()), default=0)
    return base - 2 * sum(silence.values()) - 4 * _TRIPLES


@dataclass(frozen=True)
class _Own:
    """What a branch writes into: pairs of channels for its own product, and for the way back."""

    forward: Tensor  # [n, 2]
    back: Tensor  # [n, 2]


class Pairs:
    """Writes the weights of the probe, and reads what its gradients show."""

    def __init__(self, shape: Shape, seed: int, dtype: str) -> None:
        """Lay the probe out for weights stored in ``dtype`` (torch's name).

        ``shape`` has no ``obstacle``.
        """
        self._shape, self._seed, self._family = shape, seed, Family(shape)
        #: Query heads of a key/value head. Only the first of them has queries that are not zero.
        self._sharing = shape.num_attention_heads // self._family.key_value_heads
        self._grid = 2.0 ** _GRID.get(dtype, 20)
        self._near_zero = _NEAR_ZERO_FP16 if dtype == "float16" else _NEAR_ZERO
        silence = _silence(self._family)
        groups = min(_MOST_GROUPS, _free(self._family, silence) // _IN_GROUP)
        #: Channels [groups, 5] that are equal in every token.
        self._groups = torch.arange(groups * _IN_GROUP).view(groups, _IN_GROUP)
        at = groups * _IN_GROUP
        #: Channels [triples, 4]: alpha + phi, alpha - phi, alpha, phi.
        self._triples = at + torch.arange(4 * _TRIPLES).view(_TRIPLES, 4)
        at += 4 * _TRIPLES
        every = (at + torch.arange(2 * sum(silence.values()))).view(-1, 2)
        #: By kind and layer, pairs of channels that are zero in the input, with gradients.
        self._silent = dict(zip(silence, torch.split(every, [*silence.values()]), strict=True))
        self._rows = _FeedForwardRows(shape.intermediate_size)
        self._value_rows = _ValueRows(shape.head_dim)

    # -- what the model is given -----------------------------------------------------------

    def batch(self) -> Batch:
        """Return one sequence of words from the lower half of the vocabulary, on the CPU.

        BERT is asked for other words of that half, at as many places as in training or 32.
        """
        half, length = self._shape.vocab_size // 2, self._shape.sequence_length
        made = self._generator("tokens")
        tokens = torch.randint(1, half, (1, length), generator=made)
        batch = make_batch(0, 1, self._shape, tokens=tokens)
        if not isinstance(self._shape, BertShape):
            return batch
        asked = torch.randperm(length, generator=made)[: max(_TARGETS, int(MASKED * length))]
        labels = torch.full_like(tokens, IGNORED)
        labels[:, asked] = torch.randint(1, half, (1, len(asked)), generator=made)
        return Batch(tokens, labels, batch.extra)

    def weight(self, name: str, like: Tensor) -> Tensor:
        """Return parameter ``name`` under the probe, shaped as ``like``: float32, on the CPU."""
        family, matrices = self._family, self._family.matrices(name)
        if not matrices:
            # A gain is 1. A bias is 0, and so are matrices that the probe does not know.
            gain = self._last_gain if name == family.last_gain else 1.0
            silent = name.endswith(".bias") or like.dim() > 1
            return torch.full(like.shape, 0.0 if silent else gain, dtype=torch.float32)
        value = family.first_half(matrices[0][0], like)
        for kind, layer in matrices:
            self._makers[kind](family.part(kind, value), layer)
        return family.whole(matrices[0][0], value)

    @cached_property
    def _makers(self) -> Mapping[str, Callable[[Tensor, int], None]]:
        return {
            "embedding": self._embedding,
            "head": self._head,
            TRANSFORM: self._transform,
            "q": self._queries,
            "k": self._keys,
            "v": self._values,
            "o": self._out,
            "gate": self._gate,
            "up": self._up,
            "down": self._down,
        }

    def _embedding(self, value: Tensor, _: int) -> None:
        made = self._generator("embedding")
        words, groups = len(value), len(self._groups)
        value[:, self._groups.flatten()] = self._signs(words, groups, made).repeat_interleave(
            _IN_GROUP, 1
        )
        for plus, minus, middle, difference in self._triples:
            sign = self._signs(words, 1, made)[:, 0]
            alpha, phi = self._sizes((words,), made) * sign, self._fine((words,), made)
            value[:, plus], value[:, minus] = alpha + phi, alpha - phi
            value[:, middle], value[:, difference] = alpha, phi

    def _head(self, value: Tensor, _: int) -> None:
        made, half, words = self._generator("head"), len(value) // 2, len(value)
        scale = _power(_LOGITS / (2 * _A * self._deviation))
        weights = self._weights((words, len(self._groups)), made)
        fine = self._fine(weights.shape, made)
        (begin, middle), (_, end) = self._pairs_of_words
        weights[begin + 1 : end : 2] = weights[begin:end:2]
        fine[:begin], fine[middle:], fine[begin + 1 : middle : 2] = 0, 0, 0
        value[:, self._groups[:, 0]] = (weights + fine) * scale
        value[:, self._groups[:, 1]] = (weights - fine) * scale
        rows = torch.arange(middle, end).view(-1, 2)
        self._silent_pairs(value, rows, 0, "head", made, 1.0)
        every = [self._own(kind, layer).back for kind, layer in self._family.own]
        # So small that what the branches write makes no logit larger than the others are.
        count, level = sum(back.numel() for back in every), self._level * self._family.copies
        size = level * _FAINT * _A * math.sqrt(2 * _SETS * count)
        if self._family.tied:  # a word of the input adds nothing elsewhere; its logit is its square
            value[:half] = 0
            size = max(size, math.sqrt(level * count))
        for back in every:
            signs = self._signs(half, len(back), made) * min(1.0, _power(_LOGITS / size))
            value[:half, back[:, 0]] = value[:half, back[:, 1]] = signs

    def _transform(self, value: Tensor, _: int) -> None:
        """Let each channel pass, but for some that the head does not read.

        The sums of ``_triples`` are made here, and not taken from the input: where the transform
        rounds its inputs, the head's still add up.
        """
        made, groups = self._generator(TRANSFORM), len(self._groups)
        scale = self._near_zero / self._family.copies
        value.fill_diagonal_(scale)
        plus, minus, middle, difference = self._triples.T
        value[plus] = value[minus] = 0
        value[plus, middle] = value[plus, difference] = value[minus, middle] = scale
        value[minus, difference] = -scale
        first, second, apart, usual, _ = self._groups.T[:, None]
        size = scale * _power(1 / (2 * _A * math.sqrt(groups)))
        weights = self._weights((groups, groups), made)
        fine = self._fine(weights.shape, made)
        value[self._groups[:, 2:4].flatten()] = 0
        value[apart.T, first], value[apart.T, second] = (
            (weights + fine) * size,
            (weights - fine) * size,
        )
        value[usual.T, first] = value[usual.T, second] = weights * size
        backs = torch.cat([self._own(kind, layer).back for kind, layer in self._family.own])
        self._silent_pairs(value, backs, 0, TRANSFORM, made, scale)

    @property
    def _last_gain(self) -> float:
        """The gain of the norm behind the transform: it gives what the transform was given, about.

        The transform's channels have a size of 1, so their halves a deviation of ``near_zero / 2``.
        """
        assert isinstance(self._shape, BertShape)
        deviation = math.hypot(self._near_zero / 2, math.sqrt(self._shape.layer_norm_eps))
        return _power(deviation / (self._near_zero / 2))

    @property
    def _pairs_of_words(self) -> tuple[tuple[int, int], tuple[int, int]]:
        """Where in the vocabulary pairs lie whose logits are computed apart, and equal ones."""
        vocab, half = self._shape.vocab_size, self._shape.vocab_size // 2
        quarter = min(_MOST_WORDS, (vocab - half) // 4 * 2)
        return (half, half + quarter), (half + quarter, half + 2 * quarter)

    def _block(self, kind: str, head: int) -> slice:
        """Return the rows of q, k or v (columns of o) that a key/value ``head`` has.

        Of q and o these are its first query head's.
        """
        width = self._shape.head_dim
        first = head * width * (self._sharing if kind in ("q", "o") else 1)
        return slice(first, first + width)

    def _queries(self, value: Tensor, layer: int) -> None:
        self._scored(value, layer, "q", usual=3, exchanged=5)

    def _keys(self, value: Tensor, layer: int) -> None:
        self._scored(value, layer, "k", usual=5, exchanged=3)

    def _scored(self, value: Tensor, layer: int, kind: str, *, usual: int, exchanged: int) -> None:
        """Make queries or keys: ``usual`` times a common vector, of one head ``exchanged`` times.

        Queries of 3 and keys of 5 times a vector have the scores of queries of 5 and keys of 3.
        """
        made, width = self._generator(f"{layer}/{kind}"), self._shape.head_dim
        scale = self._scale_of_scores
        signs = self._signs(width, len(self._groups), made) * scale
        # Sizes vary: scaled to the largest, 3/4 of one size are a tie of E4M3.
        base = self._sizes((width, 1), made)
        fine, more = (self._fine(signs.shape, made, 0.15) for _ in range(2))
        silent = self._silent.get((kind, layer))
        sizes = self._weights((width,), made) * scale
        shift = self._fine((width,), made) * scale
        for role, head in _roles(self._family, layer).items():
            rows = value[self._block(kind, head)]
            if role == "even":  # no scores: it attends to all tokens alike
                continue
            for column in range(exchanged if role == "exchanged" else usual):
                rows[:, self._groups[:, column]] = signs * base
            if role == kind:
                for column, by in enumerate((fine, more, -fine - more)):
                    rows[:, self._groups[:, column]] = signs * (base + by)
            if role in ("base", "equal") and silent is not None:
                rows[:, silent[0, 0]] = sizes + (shift if role == "base" else -shift)
                rows[:, silent[0, 1]] = sizes

    def _values(self, value: Tensor, layer: int) -> None:
        made, groups = self._generator(f"{layer}/v"), len(self._groups)
        scale = _power(1 / (2 * math.sqrt(groups) * _A)) / self._family.copies
        width = self._shape.head_dim
        own = self._value_rows
        rows = torch.zeros(width, value.shape[1])
        for equal in (*own.apart, *own.equal, *own.equal_back, *own.also_equal):
            weights = self._weights((groups,), made) * scale
            for row in equal:
                rows[row, self._groups[:, 0]] = rows[row, self._groups[:, 1]] = weights
        apart = own.apart[:, 1, None]
        fine = self._fine((len(apart), groups), made) * scale
        rows[apart, self._groups[:, 0]] += fine
        rows[apart, self._groups[:, 1]] -= fine
        # Sums of two channels of one size are exact in every format; those of triples are not.
        equals, every = self._groups[:_FEWEST_GROUPS, 0], torch.arange(len(own.exact))
        pair = every % len(equals), (every + 1) % len(equals)
        triples = self._triples[every % _TRIPLES]
        for where, one, other in (
            (own.exact, equals[pair[0]], equals[pair[1]]),
            (own.rounded, triples[:, 2], triples[:, 3]),
        ):
            plus, minus, middle = where.T
            rows[plus, one] = rows[minus, one] = rows[middle, one] = scale * _A
            rows[plus, other], rows[minus, other] = scale * _A, -scale * _A
        for head in _roles(self._family, layer).values():
            self._silent_pairs(rows, own.also_equal, layer, "v", made, scale)
            # Their gradients are a few channels' and have one sign (``_written``): no sum cancels.
            silent = self._silent.get(("v", layer), self._groups[:0]).flatten()
            rows[:, silent] = rows[:, silent].abs()
            value[self._block("v", head)] = rows

    def _gate(self, value: Tensor, layer: int) -> None:
        self._read(value, layer, "gate")

    def _up(self, value: Tensor, layer: int) -> None:
        self._read(value, layer, "up")

    def _read(self, value: Tensor, layer: int, kind: str) -> None:
        """Make the gate's or the other rows of the feed-forward; see ``_FeedForwardRows``."""
        made, rows = self._generator(f"{layer}/{kind}"), self._rows
        scale, groups = _power(_GATES / (2 * _A * self._deviation)), len(self._groups)
        first, second = self._groups[:, 0], self._groups[:, 1]
        for where in (rows.apart, rows.equal, rows.equal_back, rows.also_equal, rows.triples):
            weights = self._weights((len(where), groups), made) * scale
            for column in where.T:
                value[column[:, None], first] = value[column[:, None], second] = weights
        own = rows.apart[:, 1 if kind == "gate" else 2, None]
        fine = self._fine((len(own), groups), made) * scale
        value[own, first] += fine
        value[own, second] -= fine
        if kind == "up":
            self._sums(value, scale)
        self._silent_pairs(value, rows.also_equal, layer, kind, made, scale)

    def _sums(self, value: Tensor, scale: float) -> None:
        """Make of three rows the first two such that they add up to twice the third."""
        every = torch.arange(len(self._rows.triples))
        alpha, phi = self._triples[every % _TRIPLES, 2:].T
        sizes = torch.full(every.shape, scale * _A)
        if not self._family.gated:  # a sum stays one through GELU where that is straight
            straight = 2 * _power(_STRAIGHT / self._level) / self._family.copies
            sizes = straight * (1 + every // _TRIPLES / 4)
        plus, minus, middle = self._rows.triples.T
        value[self._rows.triples.flatten()] = 0
        for row in (plus, minus, middle):
            value[row, alpha] = sizes
        value[plus, phi], value[minus, phi] = sizes, -sizes

    def _silent_pairs(
        self,
        rows: Tensor,
        pairs: Tensor,
        layer: int,
        kind: str,
        made: torch.Generator,
        scale: float,
    ) -> None:
        """Let the gradients of equal ``rows`` flow into two channels that are zero in the input."""
        for one, other in self._silent.get((kind, layer), ()):
            weights, fine = (f((len(pairs),), made) * scale for f in (self._weights, self._fine))
            rows[pairs[:, 0], one], rows[pairs[:, 1], one] = weights + fine, weights - fine
            rows[pairs[:, 0], other] = rows[pairs[:, 1], other] = weights

    def _out(self, value: Tensor, layer: int) -> None:
        for role, head in _roles(self._family, layer).items():
            made = self._generator(f"{layer}/o/{role if role in ('exchanged', 'even') else ''}")
            block = value[:, self._block("o", head)]
            self._written(block, "o", layer, self._value_rows, made)

    def _down(self, value: Tensor, layer: int) -> None:
        made = self._generator(f"{layer}/down")
        self._written(value, "down", layer, self._rows, made)

    def _written(
        self,
        value: Tensor,
        kind: str,
        layer: int,
        rows: _FeedForwardRows | _ValueRows,
        made: torch.Generator,
    ) -> None:
        """Make a matrix through which a branch writes.

        Channels of ``forward`` see each pair ``rows.equal`` of inputs in two ways. Of three inputs
        ``rows.equal_back`` the gradients of the first two come from pairs of channels of ``back``
        in two ways, and the third makes the outputs of each pair equal. The gradients of inputs
        ``rows.also_equal`` come alike.
        """
        pairs, triples, alike = rows.equal, rows.equal_back, rows.also_equal
        own = self._own(kind, layer)
        weights = self._weights((len(own.forward), len(pairs)), made) * _FAINT
        fine = self._fine(weights.shape, made) * _FAINT
        one, other = own.forward[:, :1], own.forward[:, 1:]
        value[one, pairs[:, 0]], value[one, pairs[:, 1]] = weights + fine, weights - fine
        value[other, pairs[:, 0]] = value[other, pairs[:, 1]] = weights
        weights = self._weights((len(own.back), len(triples)), made) * _FAINT
        fine = self._fine(weights.shape, made) * _FAINT
        one, other = own.back[:, :1], own.back[:, 1:]
        value[one, triples[:, 0]], value[other, triples[:, 0]] = weights + fine, weights - fine
        value[one, triples[:, 1]] = value[other, triples[:, 1]] = weights
        value[one, triples[:, 2]], value[other, triples[:, 2]] = -fine, fine
        signs = self._signs(len(own.back), len(alike), made) * _FAINT * _A
        signs[0] = signs[0].abs()
        for inputs in alike.T:
            value[one, inputs] = value[other, inputs] = signs

    def _own(self, kind: str, layer: int) -> _Own:
        channels = self._family.own[kind, layer]
        count = min(_SETS, channels.width // 4)
        every = torch.arange(channels.first, channels.first + 4 * count).view(-1, 2)
        return _Own(every[:count], every[count:])

    # -- what it shows ---------------------------------------------------------------------

    def seen(self, gradient: Callable[[str], Tensor | None]) -> Iterator[PairSeen]:
        """Yield what each product shows, from the ``gradient`` of each canonical parameter."""
        family = self._family

        head, embedding = gradient(family.name("head", 0)), gradient(family.name("embedding", 0))
        yield from map(self._named, self._seen_of_head(head, embedding))
        if head is not None and family.tied:  # what words of the input have is the embedding's, too
            head = head[self._shape.vocab_size // 2 :]
        if family.transformed:
            transform = gradient(family.name(TRANSFORM, 0))
            yield from map(self._named, self._seen_of_transform(transform, head, embedding))
        for layer in range(self._shape.num_hidden_layers):
            names = {kind: family.name(kind, layer) for kind in (*family.readers, "o", "down")}
            # Each once, in an order that all ranks have: they may put it together.
            every = {name: gradient(name) for name in dict.fromkeys(names.values())}
            found = {
                kind: None if (value := every[name]) is None else family.part(kind, value)
                for kind, name in names.items()
            }
            yield from map(self._named, self._seen_of_layer(layer, found, head, embedding))

    def _named(self, pair: PairSeen) -> PairSeen:
        """Call a product what the table of the family calls it; all pairs show as many bits."""
        more = _BITS_OF_SCORES if self._family.causal else _BITS_OF_UNMASKED_SCORES
        bits = more.get(pair.product, 0.0) if pair.direction == FORWARD else 0.0
        update = {"product": self._family.product(pair.product), "length": pair.length / 2.0**bits}
        return pair.model_copy(update=update)

    def _seen_of_head(self, head: Tensor | None, embedding: Tensor | None) -> Iterator[PairSeen]:
        begin, end = self._pairs_of_words[0]
        base = slice(0, self._groups.numel())
        if head is not None:
            one, other = head[begin:end:2, base], head[begin + 1 : end : 2, base]
            yield _seen("head", FORWARD, 0, one, other)
            first = self._shape.vocab_size // 2 if self._family.tied else 0
            yield self._seen_of_triples("head", 0, head[first:])
        yield from self._seen_in_silence(0, "head", embedding)

    def _seen_of_transform(
        self, transform: Tensor | None, head: Tensor | None, embedding: Tensor | None
    ) -> Iterator[PairSeen]:
        if head is not None:
            apart, usual = self._groups.T[2:4]
            yield _seen(TRANSFORM, FORWARD, 0, head[:, usual], head[:, apart])
        if transform is not None:
            yield self._seen_of_triples(TRANSFORM, 0, transform)
        yield from self._seen_in_silence(0, TRANSFORM, embedding)

    def _seen_in_silence(
        self, layer: int, kind: str, embedding: Tensor | None
    ) -> Iterator[PairSeen]:
        silent = self._silent.get((kind, layer))
        if embedding is not None and silent is not None:
            one, other = silent.T
            seen = _seen(kind, INPUT, layer, embedding[:, other], embedding[:, one])
            if kind == "v":
                # Errors of rows add up by the square root. So do their gradients, but for one of
                # the channels from which these come: it has one sign (``_written``).
                channels, rows = len(self._own("o", layer).back), len(self._value_rows.also_equal)
                more = len(_roles(self._family, layer)) * (rows + channels - 1) / channels
                seen = seen.model_copy(update={"length": seen.length / math.sqrt(more)})
            yield seen

    def _seen_of_triples(self, kind: str, layer: int, gradient: Tensor) -> PairSeen:
        plus, minus, middle, _ = (_host(gradient[:, columns]) for columns in self._triples.T)
        return _seen(kind, WEIGHT, layer, 2 * middle, plus + minus)

    def _seen_of_layer(
        self,
        layer: int,
        found: Mapping[str, Tensor | None],
        head: Tensor | None,
        embedding: Tensor | None,
    ) -> Iterator[PairSeen]:
        width, roles, rows = self._shape.head_dim, _roles(self._family, layer), self._rows
        for kind in self._family.readers:
            gradient_of = found[kind]
            if gradient_of is not None:
                yield self._seen_of_triples(kind, layer, gradient_of)
            yield from self._seen_in_silence(layer, kind, embedding)
        if head is not None:
            for kind in ("o", "down"):
                one, other = self._own(kind, layer).forward.T
                yield _seen(kind, FORWARD, layer, head[:, other], head[:, one])
        for kind, shows in (("q", "k"), ("k", "q")):  # a gradient of scores times the other
            values = found[shows]
            if values is not None and kind in roles:
                one, other = (values[self._block(shows, n)] for n in (0, roles[kind]))
                yield _seen(kind, FORWARD, layer, one, other)
        out, down, value = found["o"], found["down"], found["v"]
        if out is not None:
            heads = {role: out[:, self._block("o", n)] for role, n in roles.items()}
            base = heads["base"]
            if "exchanged" in heads:
                seen = _seen(QK, FORWARD, layer, base, heads["exchanged"])
                even = heads.get("even", out[:, width : 2 * width])
                by_scores = float((_host(base) - _host(even)).norm())
                # An error of a score is the larger, the larger scores are.
                yield seen.model_copy(update={"length": self._deviation_of_scores * by_scores})
            one, other = self._value_rows.apart.T
            yield _seen("v", FORWARD, layer, base[:, one], base[:, other])
            for kind, direction, rows_of in (
                ("o", WEIGHT, self._value_rows.exact),
                (PV, FORWARD, self._value_rows.rounded),
            ):
                plus, minus, middle = (_host(base[:, row]) for row in rows_of.T)
                yield _seen(kind, direction, layer, 2 * middle, plus + minus)
        if down is not None:
            usual, gates, ups = (down[:, columns] for columns in rows.apart.T)
            if self._family.gated:
                yield _seen("gate", FORWARD, layer, usual, gates)
            yield _seen("up", FORWARD, layer, usual, ups)
            plus, minus, middle = (_host(down[:, columns]) for columns in rows.triples.T)
            yield _seen("down", WEIGHT, layer, 2 * middle, plus + minus)
        if value is not None:
            heads_at = torch.tensor([n * width for n in roles.values()])[:, None]
            one, other, _ = (
                (rows_of + heads_at).flatten() for rows_of in self._value_rows.equal_back.T
            )
            yield _seen("o", INPUT, layer, value[other], value[one])
        read = found["gate" if self._family.gated else "up"]
        if read is not None:
            one, other, _ = rows.equal_back.T
            yield _seen("down", INPUT, layer, read[other], read[one])

    # -- numbers ---------------------------------------------------------------------------

    @property
    def _level(self) -> float:
        """What a channel of size 1 is after the norm, about."""
        return math.sqrt(self._family.hidden / max(1, self._groups.numel() + 3 * _TRIPLES))

    @property
    def _score_of_one(self) -> float:
        """The standard deviation of scores of queries and keys of scale 1, about."""
        return 15 * _A * _A * self._deviation**2

    @property
    def _scale_of_scores(self) -> float:
        return _power(math.sqrt(_SCORES / self._score_of_one))

    @property
    def _deviation_of_scores(self) -> float:
        return self._score_of_one * self._scale_of_scores**2

    @property
    def _deviation(self) -> float:
        """The standard deviation of a sum of one channel of each group, with signs, about."""
        return self._family.copies * self._level * math.sqrt(len(self._groups))

    def _generator(self, what: str) -> torch.Generator:
        digest = hashlib.sha256(f"pairs:{self._seed}:{what}".encode()).digest()
        return torch.Generator().manual_seed(int.from_bytes(digest[:8], "little") >> 1)

    def _signs(self, rows: int, columns: int, made: torch.Generator) -> Tensor:
        return torch.randint(2, (rows, columns), generator=made).float() * 2 - 1

    def _fine(self, shape: tuple[int, ...], made: torch.Generator, most: float = 0.25) -> Tensor:
        """Return numbers between -``most`` and ``most`` as fine as the run's weights are."""
        return self._on_grid((torch.rand(shape, generator=made) * 2 - 1) * most)

    def _sizes(self, shape: tuple[int, ...], made: torch.Generator) -> Tensor:
        """Return numbers from 1.25 to 1.5, as fine as the run's weights are.

        They vary: at one single size a format might round each A + F and A - F alike.
        """
        return 1.375 + self._fine(shape, made, 0.125)

    def _weights(self, shape: tuple[int, ...], made: torch.Generator) -> Tensor:
        signs = torch.randint(2, shape, generator=made).float() * 2 - 1
        return self._sizes(shape, made) * signs

    def _on_grid(self, value: Tensor) -> Tensor:
        return (value * self._grid).round() / self._grid


class _FeedForwardRows:
    """Which channels of the feed-forward do what."""

    EACH = 13

    def __init__(self, width: int) -> None:
        """Divide as many of ``width`` channels as are needed."""
        sets = min(_SETS, width // self.EACH)
        take = _Taking(sets)
        #: A base, one whose gate is computed apart, and one whose other product is.
        self.apart = take(3)
        self.triples = take(3)
        self.equal, self.equal_back, self.also_equal = take(2), take(3), take(2)


class _ValueRows:
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


def _power(value: float) -> float:
    return 2.0 ** round(math.log2(value))


def _host(value: Tensor) -> Tensor:
    return value.detach().to("cpu").double()


def _seen(product: str, direction: Direction, layer: int, right: Tensor, other: Tensor) -> PairSeen:
    """Return how far ``other`` lies from ``right``, which it should be."""
    right, other = _host(right), _host(other)
    figures = float((right - other).norm()), float(right.norm())
    if not all(map(math.isfinite, figures)):
        figures = 0.0, 0.0
    difference, length = (float(f"{figure:.5g}") for figure in figures)
    return PairSeen(
        product=product, direction=direction, layer=layer, difference=difference, length=length
    )
