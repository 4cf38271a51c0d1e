"""GPT-2: queries, keys and values are three linear layers, as on processors with a unit for each.

A map joins them. The gradient of a key's bias is rounding alone, whatever the bias is called.
"""

import torch
from torch import nn

from llmb.plugin import hookimpl

PARTS = ("queries", "keys", "values")


class Split(nn.Module):
    def __init__(self, fused):
        super().__init__()
        weights, biases = fused.weight.detach().chunk(3), fused.bias.detach().chunk(3)
        for name, weight, bias in zip(PARTS, weights, biases, strict=True):
            linear = nn.Linear(weight.shape[1], weight.shape[0], dtype=weight.dtype)
            linear.weight, linear.bias = nn.Parameter(weight.clone()), nn.Parameter(bias.clone())
            setattr(self, name, linear)

    def forward(self, x):
        return torch.cat([getattr(self, name)(x) for name in PARTS], -1)


class Joined:
    padding = ()

    def __init__(self, *stored):
        self.stored = stored

    def read(self, kind):
        found = [{"value": p.detach(), "grad": p.grad}.get(kind) for p in self.stored]
        return None if any(one is None for one in found) else torch.cat(found)

    def write(self, value):
        with torch.no_grad():
            for parameter, part in zip(self.stored, value.chunk(len(self.stored)), strict=True):
                parameter.copy_(part)


@hookimpl
def llmb_post_process_model(model):
    for block in model.transformer.h.values():
        block.attn.c_attn = Split(block.attn.c_attn)
    return model


@hookimpl
def llmb_parameter_map(model):
    views, modules = {}, dict(model.named_modules())
    for name, parameter in model.named_parameters():
        path, _, last = name.rpartition(".")
        fused, _, part = path.rpartition(".")
        if not isinstance(modules.get(fused), Split):
            views[name] = Joined(parameter)
        elif part == PARTS[0]:
            split = modules[fused]
            views[f"{fused}.{last}"] = Joined(*(getattr(getattr(split, p), last) for p in PARTS))
    return views
