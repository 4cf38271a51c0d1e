"""Query, key and value are one matrix, gate and up another; a map says where they have gone."""

import torch
import torch.nn.functional as F
from torch import nn

from llmb.plugin import hookimpl
from llmb.reference.llama import rotate

from .kit import layers


class FusedAttention(nn.Module):
    def __init__(self, attention):
        super().__init__()
        self.head_dim = attention.head_dim
        self.qkv = nn.Parameter(
            torch.cat([getattr(attention, f"{p}_proj").weight.detach() for p in "qkv"])
        )
        self.o_proj = attention.o_proj

    def forward(self, x, cos, sin):
        split = (*x.shape[:2], -1, self.head_dim)
        q, k, v = (y.view(split).transpose(1, 2) for y in F.linear(x, self.qkv).chunk(3, -1))
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o_proj(y.transpose(1, 2).flatten(2))


class FusedMLP(nn.Module):
    def __init__(self, mlp):
        super().__init__()
        both = (mlp.gate_proj.weight.detach(), mlp.up_proj.weight.detach())
        self.gate_up = nn.Parameter(torch.cat(both))
        self.down_proj = mlp.down_proj

    def forward(self, x):
        gate, up = F.linear(x, self.gate_up).chunk(2, dim=-1)
        return self.down_proj(F.silu(gate) * up)


class Part:
    """A canonical parameter that is part ``which`` of ``of`` equal ones of a stored parameter."""

    padding = ()

    def __init__(self, stored, which=0, of=1):
        self.stored, self.which, self.of = stored, which, of

    def read(self, kind):
        tensor = {"value": self.stored.detach(), "grad": self.stored.grad}.get(kind)
        return None if tensor is None else tensor.chunk(self.of)[self.which]

    def write(self, value):
        with torch.no_grad():
            self.stored.chunk(self.of)[self.which].copy_(value)


FUSED = {"qkv": ("q_proj", "k_proj", "v_proj"), "gate_up": ("gate_proj", "up_proj")}


@hookimpl
def llmb_post_process_model(model):
    for layer in layers(model):
        layer.self_attn, layer.mlp = FusedAttention(layer.self_attn), FusedMLP(layer.mlp)
    return model


@hookimpl
def llmb_parameter_map(model):
    views = {}
    for name, parameter in model.named_parameters():
        path, _, last = name.rpartition(".")
        for which, part in enumerate(FUSED.get(last, ())):
            views[f"{path}.{part}.weight"] = Part(parameter, which, len(FUSED[last]))
        if last not in FUSED:
            views[name] = Part(parameter)
    return views
