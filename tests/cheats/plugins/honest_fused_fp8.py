"""FP8 with one scale for queries, keys and values, which are stored in one parameter."""

import torch
import torch.nn.functional as F
from torch import nn

from llmb.config import Precision
from llmb.plugin import hookimpl
from llmb.reference.llama import rotate

from .kit import Eight, layers, linears

PARTS = ("q_proj", "k_proj", "v_proj")


@hookimpl
def llmb_precisions():
    return [Precision(name="FP8", bits=8, dtype="bfloat16", native=False)]


class FusedAttention(nn.Module):
    def __init__(self, attention):
        super().__init__()
        self.head_dim, self.o_proj = attention.head_dim, attention.o_proj
        weights = [getattr(attention, part).weight.detach() for part in PARTS]
        width = weights[0].shape[1]
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.qkv.weight = nn.Parameter(torch.cat(weights))

    def forward(self, x, cos, sin):
        split = (*x.shape[:2], -1, self.head_dim)
        q, k, v = (y.view(split).transpose(1, 2) for y in self.qkv(x).chunk(3, -1))
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


@hookimpl
def llmb_post_process_model(model):
    for layer in layers(model):
        layer.self_attn = FusedAttention(layer.self_attn)
    for one in linears(model):
        if one is not model.lm_head:
            one.forward = lambda x, m=one: Eight.apply(x, m.weight)
    return model


@hookimpl
def llmb_parameter_map(model):
    return {
        name.replace("qkv", part): Part(stored, which)
        for name, stored in model.named_parameters()
        if "qkv" in name
        for which, part in enumerate(PARTS)
    }
