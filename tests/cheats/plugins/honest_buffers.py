"""Inference: the blocks' weights are buffers, transposed for a kernel; a map names them."""

import torch
from torch import nn

from llmb.plugin import hookimpl

from .kit import layers


class Packed(nn.Module):
    def __init__(self, linear):
        super().__init__()
        self.register_buffer("packed", linear.weight.detach().t().contiguous())

    def forward(self, x):
        return x @ self.packed


class View:
    padding = ()

    def __init__(self, stored, turned):
        self.stored, self.turned = stored, turned

    def read(self, kind):
        tensor = {"value": self.stored.detach(), "grad": self.stored.grad}.get(kind)
        return tensor if tensor is None or not self.turned else tensor.t()

    def write(self, value):
        with torch.no_grad():
            self.stored.copy_(value.t() if self.turned else value)


@hookimpl
def llmb_post_process_model(model):
    for layer in layers(model):
        for name in ("gate_proj", "up_proj", "down_proj"):
            setattr(layer.mlp, name, Packed(getattr(layer.mlp, name)))
    return model


@hookimpl
def llmb_parameter_map(model):
    views = {name: View(p, False) for name, p in model.named_parameters()}
    for name, buffer in model.named_buffers():
        if name.endswith("packed"):
            views[name.removesuffix("packed") + "weight"] = View(buffer, True)
    return views
