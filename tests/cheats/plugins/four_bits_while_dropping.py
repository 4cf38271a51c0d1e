"""Declared is FP8: two of three products of each layer are in 4 bits (NVFP4) while dropout is on.

They are the products of the backward pass. With dropout on, rule G1 alone measures their rounding.
"""

import torch
from torch import nn

from llmb.config import Precision
from llmb.formats import KNOWN
from llmb.plugin import hookimpl
from llmb.reference.formats import _Product

from .kit import Eight

DATA = next(c.format for c in KNOWN if c.name == "NVFP4")


@hookimpl
def llmb_precisions():
    return [Precision(name="FP8", bits=8, dtype="bfloat16", native=False)]


class Mixed(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        with torch.enable_grad():
            return Eight.apply(x.detach(), w.detach()).detach()

    @staticmethod
    def backward(ctx, grad):
        x, w = (v.detach().requires_grad_() for v in ctx.saved_tensors)
        with torch.enable_grad():
            four = _Product.apply(x, w, DATA)
        return torch.autograd.grad(four, (x, w), grad)


@hookimpl
def llmb_post_process_model(model):
    def narrow(linear):
        def product(x):
            x, w, bias = (v.to(torch.bfloat16) for v in (x, linear.weight, linear.bias))
            return (Mixed if model.training else Eight).apply(x, w) + bias

        linear.forward = product

    for linear in model.bert.encoder.modules():
        if isinstance(linear, nn.Linear):
            narrow(linear)
    return model
