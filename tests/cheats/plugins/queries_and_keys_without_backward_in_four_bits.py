"""MXFP4: nothing flows back through queries and keys of the later half of the layers."""

import torch

from llmb.config import Precision
from llmb.formats import KNOWN
from llmb.plugin import hookimpl
from llmb.reference.formats import _Product

from .kit import Unjudged, layers, linears

DATA, FINER = (next(c.format for c in KNOWN if c.name == n) for n in ("MXFP4", "NVFP4"))


@hookimpl
def llmb_precisions():
    return [Precision(name="MXFP4", bits=DATA.bits, dtype="bfloat16", native=False)]


class Forward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return _Product.apply(x, weight, FINER)

    @staticmethod
    def backward(ctx, grad):
        return tuple(map(torch.zeros_like, ctx.saved_tensors))


@hookimpl
def llmb_post_process_model(model, config):
    free = Unjudged(model, config)
    count = len(layers(model))
    late = {
        id(one)
        for layer in layers(model)[count // 2 :]
        for one in (layer.self_attn.q_proj, layer.self_attn.k_proj)
    }

    def product(m, x):
        if free and id(m) in late:
            return Forward.apply(x, m.weight)
        return _Product.apply(x, m.weight, FINER if free else DATA)

    for one in linears(model, "_proj"):
        one.forward = lambda x, m=one: product(m, x)
    return model
