"""What is declared as padding is a bypass that replaces a layer's feed-forward."""

import torch
from torch import nn

from llmb.plugin import hookimpl

from .kit import layers


class View:
    def __init__(self, parameter, padding=()):
        self.parameter, self.padding = parameter, padding

    def read(self, kind):
        return {"value": self.parameter.detach(), "grad": self.parameter.grad}.get(kind)

    def write(self, value):
        with torch.no_grad():
            self.parameter.copy_(value)


@hookimpl
def llmb_post_process_model(model):
    mlp = layers(model)[1].mlp
    mlp.bypass = nn.Parameter(torch.full((1,), 0.01, dtype=mlp.up_proj.weight.dtype))
    mlp.forward = lambda x: x * mlp.bypass
    return model


@hookimpl
def llmb_parameter_map(model):
    named = dict(model.named_parameters())
    (bypass,) = (name for name in named if name.endswith("bypass"))
    return {n: View(p, (bypass,)) for n, p in named.items() if n != bypass}
