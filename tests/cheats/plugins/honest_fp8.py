"""Declared as FP8: the blocks multiply in 8 bits, gradients in the wider of the two formats."""

import torch

from llmb.config import Precision
from llmb.plugin import hookimpl

from .kit import fp8, linears


@hookimpl
def llmb_precisions():
    return [Precision(name="FP8", bits=8, dtype="bfloat16")]


class Eight(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w):
        x, w = fp8(x), fp8(w)
        ctx.save_for_backward(x, w)
        return torch.nn.functional.linear(x, w)

    @staticmethod
    def backward(ctx, grad):
        x, w = ctx.saved_tensors
        grad = fp8(grad, torch.float8_e5m2)
        return grad @ w, grad.flatten(0, -2).t() @ x.flatten(0, -2)


@hookimpl
def llmb_post_process_model(model):
    for linear in linears(model, "_proj"):
        linear.forward = lambda x, m=linear: Eight.apply(x, m.weight)
    return model
