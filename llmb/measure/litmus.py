"""Tests the internal precision of a device's matrix products with sums that need full precision.

The result is a note to the reader of a record (rule P3), not a proof: a device may choose another
kernel for another shape. Runs in ``honest_run``, with the plugin's settings in place.
"""

from __future__ import annotations

import torch
from torch import Tensor

from llmb.config import RunConfig
from llmb.records.evidence import LitmusEvidence

#: Hidden size of llama-1.4b. 3200 is exact in BF16, but a sum of ones kept in BF16 stops at 256.
_LENGTH = 3200
_ROWS = 16  # enough rows for the usual matrix kernel instead of a vector kernel
_SIGNIFICANT = {torch.bfloat16: 8, torch.float16: 11, torch.float32: 24, torch.float64: 53}
#: Significant bits of the widest narrower format that a product may use inside. Example: 11 for
#: float32, from TF32 (as many as FP16); 24 for float64, from float32.
_NARROW = {torch.float32: 11, torch.float64: 24}


def litmus(config: RunConfig) -> LitmusEvidence | None:
    """Return the sums and bits kept by products in ``config``'s dtype, None for unusual dtypes."""
    dtype = getattr(torch, config.precision.dtype)
    significant = _SIGNIFICANT.get(dtype)
    if significant is None:
        return None
    # The first power of two to which 1 cannot be added: the next value is 4 away, 1 is less than 2.
    big = 2.0 ** (_NARROW.get(dtype, significant) + 1)
    return LitmusEvidence(
        dtype=config.precision.dtype,
        length=_LENGTH,
        ones=_product(torch.ones(1, _LENGTH), dtype, config.device).min().item(),
        big=big,
        kept=_product(_cancelling(big), dtype, config.device).min().item(),
        operand_bits=_operand_bits(significant, dtype, config.device),
    )


def _cancelling(big: float) -> Tensor:
    """Return rows that sum to 1: ``big``, 1 and ``-big`` in every order, near and far apart."""
    orders = [(big, 1.0, -big), (1.0, big, -big), (big, -big, 1.0)]
    rows = torch.zeros(2 * len(orders), _LENGTH)
    for number, values in enumerate(orders):
        rows[number, :3] = torch.tensor(values)
        rows[len(orders) + number, :: _LENGTH // 3][:3] = torch.tensor(values)
    return rows


def _operand_bits(significant: int, dtype: torch.dtype, device: str) -> int:
    """Return the number of significant bits of an operand that a product keeps.

    Each row sums ``1 + 2**-n`` and ``-1``: 0 where the operand's last bit is dropped.
    """
    rows = torch.zeros(significant - 1, _LENGTH, dtype=torch.float64)
    for n in range(1, significant):
        rows[n - 1, :2] = torch.tensor([1 + 2.0**-n, -1.0], dtype=torch.float64)
    sums = _product(rows, dtype, device)
    kept = [n for n in range(1, significant) if sums[n - 1].min().item() == 2.0**-n]
    return max(kept, default=0) + 1


def _product(rows: Tensor, dtype: torch.dtype, device: str) -> Tensor:
    """Return the sums of ``rows`` ``[rows, length]``, by a matrix product of a model's size."""
    left = torch.zeros(max(_ROWS, len(rows)), _LENGTH, dtype=rows.dtype)
    left[: len(rows)] = rows
    right = torch.ones(_LENGTH, _ROWS, dtype=dtype, device=device)
    return torch.matmul(left.to(dtype).to(device), right).cpu().double()[: len(rows)]
