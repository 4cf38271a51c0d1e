"""Source of plugins that compute in narrow number formats, written without llmb's own emulator.

Every number of an element type is in a sorted table, a value goes to the nearest one of the table,
and scales are those of the format's own document. ``DECLARED`` and ``COMPUTES`` are put in front.
"""

from __future__ import annotations

SOURCE = '''
import re
from llmb.config import Precision
from llmb.formats import Element, Format

def table(exponent_bits, mantissa_bits, largest):
    bias = max(1, 2 ** (exponent_bits - 1) - 1) if exponent_bits > 1 else 1
    found = set()
    for e in range(2 ** exponent_bits):
        for m in range(2 ** mantissa_bits):
            part = m / 2 ** mantissa_bits
            found.add(2.0 ** (1 - bias) * part if e == 0 else 2.0 ** (e - bias) * (1 + part))
    return torch.tensor(sorted(v for v in found if v <= largest))

E4M3, E5M2 = table(4, 3, 448.0), table(5, 2, 57344.0)
E3M2, E2M3, E2M1 = table(3, 2, 28.0), table(2, 3, 7.5), table(2, 1, 6.0)
E2M2 = table(2, 2, 7.0)

def to_table(value, values, stochastic=False):
    size = value.abs().clamp(max=float(values[-1]))
    above = torch.bucketize(size, values).clamp(min=1, max=len(values) - 1)
    low, high = values[above - 1], values[above]
    part = (size - low) / (high - low)
    up = torch.rand_like(part) < part if stochastic else part > 0.5
    return torch.where(up, high, low) * value.sign()

def blocks(value, length):
    return value.float().unflatten(-1, (-1, min(length, value.shape[-1])))

def mx(value, values, length=32, stochastic=False):
    parts = blocks(value, length)
    top = parts.abs().amax(-1, keepdim=True).clamp(min=2.0 ** -100)
    scale = torch.exp2(torch.floor(torch.log2(top)) - torch.floor(torch.log2(values[-1])))
    return (to_table(parts / scale, values, stochastic) * scale).flatten(-2).to(value.dtype)

def nv(value, stochastic=False):
    parts = blocks(value, 16)
    whole = parts.abs().amax().clamp(min=1e-30) / (6 * 448)
    scale = to_table(parts.abs().amax(-1, keepdim=True) / 6 / whole, E4M3).clamp(min=2.0 ** -9)
    parts = to_table(parts / (scale * whole), E2M1, stochastic) * scale * whole
    return parts.flatten(-2).to(value.dtype)

def nv_square(value):
    """16 x 16 elements share a scale."""
    rows, columns = (size // 16 for size in value.shape)
    tiles = value.float().view(rows, 16, columns, 16).transpose(1, 2).flatten(2)
    whole = tiles.abs().amax() / (6 * 448)
    scale = to_table(tiles.abs().amax(-1, keepdim=True) / 6 / whole, E4M3).clamp(min=2.0 ** -9)
    tiles = to_table(tiles / (scale * whole), E2M1) * scale * whole
    return tiles.view(rows, columns, 16, 16).transpose(1, 2).reshape(value.shape).to(value.dtype)

def one_scale(value, values):
    scale = value.float().abs().amax().clamp(min=1e-30) / values[-1]
    return (to_table(value.float() / scale, values) * scale).to(value.dtype)

def hadamard(value):
    """Turn each 16 elements of the last dimension: what both operands of a product undergo."""
    h = torch.ones(1, 1)
    for _ in range(4):
        h = torch.cat((torch.cat((h, h), 1), torch.cat((h, -h), 1)), 0)
    signs = torch.tensor([1, -1, -1, 1, 1, 1, -1, 1, -1, 1, 1, -1, 1, 1, 1, -1.0])
    return (blocks(value, 16) @ (signs[:, None] * h / 4)).flatten(-2).to(value.dtype)

def same(rounding):
    return rounding, rounding, rounding, rounding

# Activations, weights, gradients of outputs, and what both operands of weight gradients undergo.
WAYS = {
    "BF16": same(lambda v: v),
    "FP8": (lambda v: one_scale(v, E4M3),) * 2 + (lambda v: one_scale(v, E5M2),),
    "MXFP8": same(lambda v: mx(v, E4M3))[:3],
    "MXFP8-hybrid": (lambda v: mx(v, E4M3),) * 2 + (lambda v: mx(v, E5M2),),
    "MXFP6": same(lambda v: mx(v, E3M2))[:3],
    "MXFP6-E2M3": same(lambda v: mx(v, E2M3))[:3],
    "MXFP4": same(lambda v: mx(v, E2M1))[:3],
    "MXFP4-stochastic": same(lambda v: mx(v, E2M1))[:2] + (lambda v: mx(v, E2M1, 32, True),),
    "NVFP4": same(nv)[:3],
    "NVFP4-recipe": (nv, nv_square, lambda v: nv(v, True), hadamard),
    "FP4": same(lambda v: one_scale(v, E2M1))[:3],
    "MXFP5": same(lambda v: mx(v, E2M2))[:3],
}

class Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        of_x, of_w = WAYS[COMPUTES][:2]
        return torch.nn.functional.linear(of_x(x), of_w(w))

    @staticmethod
    def backward(ctx, grad):
        x, w = ctx.saved_tensors
        of_x, of_w, of_grad, *turn = WAYS[COMPUTES]
        turned = turn[0] if turn else lambda value: value
        to_x = of_grad(grad) @ of_w(w.t().contiguous()).t()
        rows, inputs = grad.flatten(0, -2).t().contiguous(), x.flatten(0, -2).t().contiguous()
        return to_x, of_grad(turned(rows)) @ of_x(turned(inputs)).t()

@hookimpl
def llmb_precisions():
    return [DECLARED]

@hookimpl
def llmb_post_process_model(model):
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear) and re.search(r"[.][0-9]+[.]", name):
            module.forward = lambda x, m=module: Product.apply(x, m.weight)
    return model
'''


def source(declared: str, computes: str) -> str:
    """Return a plugin whose only format is ``declared`` (Python code of a ``Precision``)."""
    return f"{SOURCE}\nCOMPUTES = {computes!r}\nDECLARED = {declared}\n"


def precision(name: str, bits: int, data: str = "None") -> str:
    """Return the code of a format that is not native, so that no ceiling is measured."""
    return f'Precision(name="{name}", bits={bits}, dtype="bfloat16", native=False, format={data})'
