"""The share of a parameter that needs no work: zero rows, equal rows, or any other lack of rank.

A plugin that writes such weights into its model computes a smaller model, and each step right.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

#: Directions in which a matrix is below this share of its usual strength need hardly any work.
_FAINT = 0.03
_PROBES, _ITERATIONS = 4, 30
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
