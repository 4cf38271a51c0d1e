"""torch's own matrix product is registered anew for the CPU, with 8-bit operands."""

import torch

from .kit import fp8

library = torch.library.Library("aten", "IMPL")
product = torch.ops.aten.bmm


def mm(left, right):
    return product(fp8(left)[None], fp8(right)[None])[0]


library.impl("mm", mm, "CPU")
