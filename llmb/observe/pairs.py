"""The probe ``pairs``: measure the significand of each matrix product of a training step alone.

The weights of the probe make pairs of units that are equal in exact arithmetic. The operands of a
pair are written differently in a single product. Example: ``h_1 = h_2`` in every token, and two
rows of ``up_proj`` are ``(A, A)`` and ``(A + F, A - F)``: both give ``2 A h_1``. A product that
rounds weights to 8 bits gives two different values, and the two columns of ``down_proj``'s gradient
differ. All other roundings of the step are equal for both units: a product in FP8 cannot hide
another product in FP8. No reference is needed: the correct difference is zero.

Every parameter is written: gains are 1, biases 0. A sum of two units of the feed-forward stays a
sum: with a gate because both units have equal gates, with GELU because inputs are 8 or more, where
GELU(x) is x. ``llmb.observe.pairs_family`` has the other differences between families,
``pairs_layout`` the positions of the units, and ``pairs_seen`` reads the gradients.

The probe measures the rounding of the differing operand: the weight (forward, input gradient) or
the activation (weight gradient), both operands of QK^T, and the values of PV. The rounding of the
gradients themselves is not measured here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import cached_property, partial

import torch
from torch import Tensor

from llmb.families import TRANSFORM
from llmb.observe.first_model import float32_by_default
from llmb.observe.pairs_layout import (
    FEWEST_GROUPS,
    IN_GROUP,
    SETS,
    TRIPLES,
    A,
    FeedForwardRows,
    PairsLayout,
    ValueRows,
    power,
)
from llmb.records.seeds import derive
from llmb.reference.data import MASKED, Batch, make_batch
from llmb.reference.loss import IGNORED
from llmb.reference.shapes import Shape

#: Explicit significand bits of a run's weights; for float32, 3 bits fewer than the format has:
#: sums of a pair must be exact.
_GRID = {"bfloat16": 7, "float16": 10, "float32": 20}
_FAINT = 2.0**-6
_LOGITS, _GATES = 1.0, 1.0  # standard deviations
#: Factor of the transform. Near zero, GELU is x / 2, and the mean of GELU is far below the faint
#: values. float16 cannot represent values that small.
_NEAR_ZERO, _NEAR_ZERO_FP16 = 2.0**-16, 2.0**-6
#: Fewest targets of BERT's probe: in a short sequence the share of training would be too few.
_TARGETS = 32
#: Gain of the last norm in the channels of triples, where one parameter is embedding and head.
_APART = 2.0**-6
#: Gain of a normed query: scores then vary as those of the other families do.
_QUERY_GAIN = 2.0
_STRAIGHT = 8.0  # above 8, GELU(x) is x; below -8, GELU(x) is 0: both to within 2^-40


class Pairs:
    """Writes the weights of the probe, and provides the batch for the model."""

    def __init__(self, shape: Shape, seed: int, dtype: str) -> None:
        """Lay the probe out for weights stored in ``dtype`` (torch's name, such as ``bfloat16``).

        ``shape`` has no ``pairs_layout.obstacle``.
        """
        self._at, self._seed = PairsLayout(shape), seed
        self._shape, self._family, self._groups = shape, self._at.family, self._at.groups
        self._grid = 2.0 ** _GRID.get(dtype, 20)
        self._near_zero = _NEAR_ZERO_FP16 if dtype == "float16" else _NEAR_ZERO

    @float32_by_default()
    def batch(self) -> Batch:
        """Return a sequence of words from the lower half of the vocabulary, on the CPU.

        BERT's labels are other words of the lower half, at as many positions as in training or 32.
        """
        half, length = self._shape.vocab_size // 2, self._shape.sequence_length
        made = self._generator("tokens")
        tokens = torch.randint(1, half, (1, length), generator=made)
        batch = make_batch(0, 1, self._shape, tokens=tokens)
        if self._family.family.causal:
            return batch
        asked = torch.randperm(length, generator=made)[: max(_TARGETS, int(MASKED * length))]
        labels = torch.full_like(tokens, IGNORED)
        labels[:, asked] = torch.randint(1, half, (1, len(asked)), generator=made)
        return Batch(tokens, labels, batch.extra)

    @float32_by_default()
    def weight(self, name: str, like: Tensor) -> Tensor:
        """Return parameter ``name`` under the probe, shaped as ``like``: float32, on the CPU."""
        family, matrices = self._family, self._family.matrices(name)
        if not matrices:
            # A gain is 1. A bias is 0, and unknown matrices are 0, too.
            if family.shared and name == family.family.last_norm:
                return self._gains_of_shared(like)
            gain = self._last_gain if name == family.last_gain else 1.0
            gain = _QUERY_GAIN if family.is_query_norm(name) else gain
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
            "q": partial(self._scored, kind="q", usual=3, exchanged=5),
            "k": partial(self._scored, kind="k", usual=5, exchanged=3),
            "v": self._values,
            "o": self._out,
            "gate": partial(self._read, kind="gate"),
            "up": partial(self._read, kind="up"),
            "down": self._down,
        }

    def _embedding(self, value: Tensor, _: int) -> None:
        made = self._generator("embedding")
        words, groups = len(value), len(self._groups)
        value[:, self._groups.flatten()] = self._signs(words, groups, made).repeat_interleave(
            IN_GROUP, 1
        )
        for plus, minus, middle, difference in self._at.triples:
            sign = self._signs(words, 1, made)[:, 0]
            alpha, phi = self._sizes((words,), made) * sign, self._fine((words,), made)
            value[:, plus], value[:, minus] = alpha + phi, alpha - phi
            value[:, middle], value[:, difference] = alpha, phi

    def _gains_of_shared(self, like: Tensor) -> Tensor:
        """Return gains with which a state of the input adds next to nothing to an input word.

        Of five equal channels the head reads the first two.
        """
        gains = torch.ones(like.shape)
        for column, gain in enumerate((1.0, 1.0, -1.0, -1.0, 0.0)):
            gains[self._groups[:, column]] = gain
        gains[self._at.triples.flatten()] = _APART
        return gains

    def _head(self, value: Tensor, _: int) -> None:
        made, half, words = self._generator("head"), len(value) // 2, len(value)
        embedding = value[:half].clone()  # zeros, unless the parameter is shared
        value.zero_()
        scale = power(_LOGITS / (2 * A * self._at.deviation))
        weights = self._weights((words, len(self._groups)), made)
        fine = self._fine(weights.shape, made)
        (begin, middle), (_, end) = self._at.pairs_of_words
        weights[begin + 1 : end : 2] = weights[begin:end:2]
        fine[:begin], fine[middle:], fine[begin + 1 : middle : 2] = 0, 0, 0
        value[:, self._groups[:, 0]] = (weights + fine) * scale
        value[:, self._groups[:, 1]] = (weights - fine) * scale
        rows = torch.arange(middle, end).view(-1, 2)
        self._silent_pairs(value, rows, 0, "head", made, 1.0)
        every = [self._at.own(kind, layer).back for kind, layer in self._family.own]
        # Small enough: the output of the branches makes no logit larger than the other logits.
        count, level = sum(back.numel() for back in every), self._at.level * self._family.copies
        size = level * _FAINT * A * math.sqrt(2 * SETS * count)
        if self._family.family.tied:  # an input word adds nothing elsewhere; its logit is a square
            value[:half] = 0
            size = max(size, math.sqrt(level * count))
        for back in every:
            signs = self._signs(half, len(back), made) * min(1.0, power(_LOGITS / size))
            value[:half, back[:, 0]] = value[:half, back[:, 1]] = signs
        value[:half] += embedding

    def _transform(self, value: Tensor, _: int) -> None:
        """Pass each channel through, except some channels that the head does not read.

        The sums of ``_triples`` are made here, and not taken from the input: then the head's sums
        hold even if the transform rounds inputs.
        """
        made, groups = self._generator(TRANSFORM), len(self._groups)
        scale = self._near_zero / self._family.copies
        value.fill_diagonal_(scale)
        plus, minus, middle, difference = self._at.triples.T
        value[plus] = value[minus] = 0
        value[plus, middle] = value[plus, difference] = value[minus, middle] = scale
        value[minus, difference] = -scale
        first, second, apart, usual, _ = self._groups.T[:, None]
        # Large enough: a 4-bit format with a single scale must not round all these values alike.
        size = scale * power(2 / (A * math.sqrt(groups)))
        weights = self._weights((groups, groups), made)
        fine = self._fine(weights.shape, made)
        value[self._groups[:, 2:4].flatten()] = 0
        value[apart.T, first], value[apart.T, second] = (
            (weights + fine) * size,
            (weights - fine) * size,
        )
        value[usual.T, first] = value[usual.T, second] = weights * size
        backs = torch.cat([self._at.own(kind, layer).back for kind, layer in self._family.own])
        self._silent_pairs(value, backs, 0, TRANSFORM, made, scale)

    @property
    def _last_gain(self) -> float:
        """Gain of the norm after the transform, to restore about the input of the transform.

        GELU halves the input; with the pairs of ``_transform`` the deviation is twice the half.
        """
        epsilon: float = vars(self._shape)["layer_norm_eps"]
        deviation = math.hypot(self._near_zero, math.sqrt(epsilon))
        return power(deviation / (self._near_zero / 2))

    def _scored(self, value: Tensor, layer: int, kind: str, *, usual: int, exchanged: int) -> None:
        """Make queries or keys: ``usual`` times a common vector, in one head ``exchanged`` times.

        Example: queries of 3 and keys of 5 times a vector give the scores of queries of 5 and keys
        of 3. Norms of heads would make both alike: see ``_counts``.
        """
        made, width = self._generator(f"{layer}/{kind}"), self._shape.head_dim
        scale = self._at.scale_of_scores
        signs = self._signs(width, len(self._groups), made) * scale
        # Sizes vary: scaled to the largest value, 3/4 of a size is a tie of E4M3.
        base = self._sizes((width, 1), made)
        fine, more = (self._fine(signs.shape, made, 0.15) for _ in range(2))
        silent = self._at.silent.get((kind, layer))
        sizes = self._weights((width,), made) * scale
        shift = self._fine((width,), made) * scale
        if self._family.normed:  # a channel after the other in its half: equal, but for the counts
            for each in (signs, base):
                each[1::2] = each[::2]
        for role, head in self._at.roles(layer).items():
            rows = value[self._at.block(kind, head)]
            if role == "even":  # no scores: the head attends to all tokens alike
                continue
            counts = self._counts(exchanged if role == "exchanged" else usual)
            for column in range(IN_GROUP):
                rows[:, self._groups[:, column]] = signs * base * (counts > column)
            if role == kind:
                for column, by in enumerate((fine, more, -fine - more)):
                    rows[:, self._groups[:, column]] = signs * (base + by) * (counts > column)
            if role in ("base", "equal") and silent is not None:
                rows[:, silent[0, 0]] = sizes + (shift if role == "base" else -shift)
                rows[:, silent[0, 1]] = sizes

    def _counts(self, times: int) -> Tensor:
        """Return how many channels of a group a row of queries or keys adds up, ``[rows, 1]``.

        Without norms of heads it is ``times`` in each row, 3 or 5. With norms 3 stands for 4 and 3,
        and 5 for 5 and 0, in even and odd rows: 4^2 + 3^2 = 5^2, so that the norm divides both by
        the same, and each score is 4 x 5 times the sum over even rows. Rows that are rotated
        together have one count, and even and odd rows equal sizes.
        """
        width = self._shape.head_dim
        if not self._family.normed:
            return torch.full((width, 1), times)
        return torch.tensor((4, 3) if times == 3 else (5, 0)).repeat(width // 2)[:, None]

    def _values(self, value: Tensor, layer: int) -> None:
        made, groups = self._generator(f"{layer}/v"), len(self._groups)
        scale = power(1 / (2 * math.sqrt(groups) * A)) / self._family.copies
        width = self._shape.head_dim
        own = self._at.value_rows
        rows = torch.zeros(width, value.shape[1])
        for equal in (*own.apart, *own.equal, *own.equal_back, *own.also_equal):
            weights = self._weights((groups,), made) * scale
            for row in equal:
                rows[row, self._groups[:, 0]] = rows[row, self._groups[:, 1]] = weights
        apart = own.apart[:, 1, None]
        fine = self._fine((len(apart), groups), made) * scale
        rows[apart, self._groups[:, 0]] += fine
        rows[apart, self._groups[:, 1]] -= fine
        # Sums of two channels of equal size are exact in every format; sums of triples are not.
        equals, every = self._groups[:FEWEST_GROUPS, 0], torch.arange(len(own.exact))
        pair = every % len(equals), (every + 1) % len(equals)
        triples = self._at.triples[every % TRIPLES]
        for where, one, other in (
            (own.exact, equals[pair[0]], equals[pair[1]]),
            (own.rounded, triples[:, 2], triples[:, 3]),
        ):
            plus, minus, middle = where.T
            rows[plus, one] = rows[minus, one] = rows[middle, one] = scale * A
            rows[plus, other], rows[minus, other] = scale * A, -scale * A
        for head in self._at.roles(layer).values():
            self._silent_pairs(rows, own.also_equal, layer, "v", made, scale)
            # Gradients come from few channels and have equal signs (``_written``): no sum cancels.
            silent = self._at.silent.get(("v", layer), self._groups[:0]).flatten()
            rows[:, silent] = rows[:, silent].abs()
            value[self._at.block("v", head)] = rows

    def _read(self, value: Tensor, layer: int, kind: str) -> None:
        """Make the gate's or the up rows of the feed-forward; see ``FeedForwardRows``."""
        made, rows = self._generator(f"{layer}/{kind}"), self._at.rows
        scale, groups = power(_GATES / (2 * A * self._at.deviation)), len(self._groups)
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
        """Make the first two of three rows add up to twice the third row."""
        every = torch.arange(len(self._at.rows.triples))
        alpha, phi = self._at.triples[every % TRIPLES, 2:].T
        sizes = torch.full(every.shape, scale * A)
        if not self._family.gated:  # a sum stays a sum through GELU where GELU is straight
            straight = 2 * power(_STRAIGHT / self._at.level) / self._family.copies
            sizes = straight * (1 + every // TRIPLES / 4)
        plus, minus, middle = self._at.rows.triples.T
        value[self._at.rows.triples.flatten()] = 0
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
        for one, other in self._at.silent.get((kind, layer), ()):
            weights, fine = (f((len(pairs),), made) * scale for f in (self._weights, self._fine))
            rows[pairs[:, 0], one], rows[pairs[:, 1], one] = weights + fine, weights - fine
            rows[pairs[:, 0], other] = rows[pairs[:, 1], other] = weights

    def _out(self, value: Tensor, layer: int) -> None:
        for role, head in self._at.roles(layer).items():
            made = self._generator(f"{layer}/o/{role if role in ('exchanged', 'even') else ''}")
            block = value[:, self._at.block("o", head)]
            self._written(block, "o", layer, self._at.value_rows, made)

    def _down(self, value: Tensor, layer: int) -> None:
        made = self._generator(f"{layer}/down")
        self._written(value, "down", layer, self._at.rows, made)

    def _written(
        self,
        value: Tensor,
        kind: str,
        layer: int,
        rows: FeedForwardRows | ValueRows,
        made: torch.Generator,
    ) -> None:
        """Make a matrix through which a branch writes.

        Channels of ``forward`` see each pair ``rows.equal`` of inputs in two ways. Of three inputs
        ``rows.equal_back``, the gradients of the first two come from pairs of channels of ``back``
        in two ways, and the third input makes the outputs of each pair equal. The inputs
        ``rows.also_equal`` receive equal gradients.
        """
        pairs, triples, alike = rows.equal, rows.equal_back, rows.also_equal
        own = self._at.own(kind, layer)
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
        signs = self._signs(len(own.back), len(alike), made) * _FAINT * A
        signs[0] = signs[0].abs()
        for inputs in alike.T:
            value[one, inputs] = value[other, inputs] = signs

    def _generator(self, what: str) -> torch.Generator:
        return torch.Generator().manual_seed(derive("pairs", self._seed, what))

    def _signs(self, rows: int, columns: int, made: torch.Generator) -> Tensor:
        return torch.randint(2, (rows, columns), generator=made).float() * 2 - 1

    def _fine(self, shape: tuple[int, ...], made: torch.Generator, most: float = 0.25) -> Tensor:
        """Return numbers from -``most`` to ``most``, with the precision of the run's weights."""
        fine = (torch.rand(shape, generator=made) * 2 - 1) * most
        return (fine * self._grid).round() / self._grid

    def _sizes(self, shape: tuple[int, ...], made: torch.Generator) -> Tensor:
        """Return numbers from 1.25 to 1.5, with the precision of the run's weights.

        Sizes vary: at a single size a format might round each A + F and A - F alike.
        """
        return 1.375 + self._fine(shape, made, 0.125)

    def _weights(self, shape: tuple[int, ...], made: torch.Generator) -> Tensor:
        signs = torch.randint(2, shape, generator=made).float() * 2 - 1
        return self._sizes(shape, made) * signs
