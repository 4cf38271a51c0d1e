"""The share of a parameter that needs no work: weights that lack rank, and features that sleep.

A plugin that writes such weights into its model computes a smaller model, and each step right.
Weights lack rank where rows are zero or equal. A feature sleeps where its activation is flat for
each token, such as SiLU far below zero: gradients in front of it and behind it are zero.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from llmb.records.audited import LEAST_SIDE

#: Directions in which a matrix is below this share of its usual strength need hardly any work.
_FAINT = 0.03
_PROBES, _ITERATIONS = 4, 30
#: A row or column of a gradient sleeps below this share of the usual length.
_ASLEEP = 0.03
#: Parts of the names of queries, keys and values in one matrix, and of embeddings.
_FUSED, _EMBEDDINGS = "attn.c_attn.", ("embed", ".wte.", ".wpe.")
#: Most rows of the longer side, in rows of the shorter side: so many are drawn at random.
_LONGEST = 4
#: Longer rows and columns, in usual lengths, are shortened to this length.
_MOST = 2.0
_TINY = torch.finfo(torch.float32).tiny


def idle_share(value: Tensor, strength: float) -> float:
    """Return the share of ``value`` ``[n]`` or ``[n, m]`` that needs no work, 0 to 1.

    ``strength`` is the root mean square of the parameter before training. Of a vector, such as the
    gains of a norm, near zeros count: what they multiply is not needed. Of a matrix the larger of
    two shares counts: directions of the shorter side in which the matrix is weak; and, in random
    blocks of the longer side, half as long as the shorter side, rows that add no direction.
    Examples: 0.03 for a random square matrix, 0.75 if three of four rows are zero.
    """
    wide = value.float()
    if wide.dim() == 1:
        return float((wide.abs() < _FAINT * strength).float().mean())
    tall = wide if wide.shape[0] >= wide.shape[1] else wide.t()
    rows, columns = tall.shape
    generator = torch.Generator().manual_seed(0)
    tall = tall[torch.randperm(rows, generator=generator)[: _LONGEST * columns]]
    # A few huge rows or columns would keep the equations from being solved.
    for dim in (1, 0):
        most = _MOST * strength * math.sqrt(tall.shape[dim])
        tall = tall * (most / tall.norm(dim=dim, keepdim=True).clamp(min=most))
    found = _weak(tall.t()[None], strength, generator)
    if rows > columns:
        each = columns // 2
        blocks = tall[: len(tall) // each * each].view(-1, each, columns)
        found = max(found, _weak(blocks, strength, generator))
    return found


@dataclass
class Activity:
    """Lengths of rows and columns of each matrix's gradient, added up over parts of a batch."""

    #: Words of the vocabulary.
    words: int
    _squares: dict[str, list[Tensor]] = field(default_factory=dict)

    def add(self, name: str, gradient: Tensor) -> None:
        """Add the gradient ``[n, m]`` of the parameter ``name``.

        Vectors, and matrices with a side shorter than ``LEAST_SIDE``, are left out.
        """
        if gradient.dim() != 2 or min(gradient.shape) < LEAST_SIDE:
            return
        squares = gradient.detach().float().square()
        # Queries and keys of GPT-2 have far smaller gradients than the values beside them.
        parts = squares.chunk(3, squares.shape.index(max(squares.shape))) if _FUSED in name else ()
        sums = [part.sum(dim) for part in parts or (squares,) for dim in (1, 0)]
        before = self._squares.get(name) or [torch.zeros_like(one) for one in sums]
        self._squares[name] = [a + b for a, b in zip(before, sums, strict=True)]

    def clear(self) -> None:
        """Forget all gradients."""
        self._squares.clear()

    def asleep(self) -> dict[str, float]:
        """Return for each matrix the share of its rows, or of its columns, that sleep, 0 to 1.

        The larger of both shares counts. Example: 0.94 where 15 of 16 features of an up-projection
        sleep. Rows of embeddings and of the head are left out: most words occur in no batch.
        """
        found = {}
        for name, sides in self._squares.items():
            of_embedding = any(part in name for part in _EMBEDDINGS)
            told = [
                one
                for number, one in enumerate(sides)
                if len(one) != self.words and not (of_embedding and number == 0) and one.any()
            ]
            found[name] = max((_asleep(one) for one in told), default=0.0)
        return found


def _asleep(squares: Tensor) -> float:
    """Return the share of squared lengths that are below ``_ASLEEP`` of the usual length."""
    return float((squares < _ASLEEP**2 * squares.mean()).float().mean())


def _weak(blocks: Tensor, strength: float, generator: torch.Generator) -> float:
    """Return the share of weak directions of the rows of ``blocks`` ``[blocks, rows, columns]``.

    The share is the mean of ``e / (s + e)`` over the squared singular values ``s``, with ``e`` far
    below a usual ``s``. The mean is a trace, estimated with random signs (Hutchinson, "A stochastic
    estimator of the trace of the influence matrix", 1990) by conjugate gradients.
    """
    count, rows, columns = blocks.shape
    squares = blocks @ blocks.mT
    faint = (_FAINT * strength) ** 2 * columns
    signs = torch.randint(0, 2, (count, rows, _PROBES), generator=generator).float() * 2 - 1
    # Solves (squares + faint) x = signs, for each column of ``signs``.
    x, left = torch.zeros_like(signs), signs.clone()
    along, square = left.clone(), left.square().sum(1, keepdim=True)
    for _ in range(_ITERATIONS):
        image = squares @ along + faint * along
        step = square / (along * image).sum(1, keepdim=True).clamp(min=_TINY)
        x += step * along
        left -= step * image
        before, square = square, left.square().sum(1, keepdim=True)
        along = left + square / before.clamp(min=_TINY) * along
    return float(faint * (signs * x).sum() / signs.numel())
