"""Matrices are stored transposed and padded to a multiple of 48 columns, behind a map."""

import torch
import torch.nn.functional as F
from torch import nn

from llmb.plugin import hookimpl

from .kit import linears

MULTIPLE = 48


class Packed(nn.Module):
    def __init__(self, linear):
        super().__init__()
        self.width = linear.out_features
        transposed = linear.weight.detach().t()
        self.packed = nn.Parameter(F.pad(transposed, (0, -self.width % MULTIPLE)).contiguous())

    def forward(self, x):
        return (x @ self.packed)[..., : self.width]


class View:
    def __init__(self, name, parameter, width=None):
        self.parameter, self.width = parameter, width
        padded = width is not None and width != parameter.shape[1]
        self.padding = (name,) if padded else ()

    def shape(self, tensor):
        return tensor if self.width is None else tensor[:, : self.width].t()

    def read(self, kind):
        tensor = {"value": self.parameter.detach(), "grad": self.parameter.grad}.get(kind)
        return None if tensor is None else self.shape(tensor)

    def write(self, value):
        with torch.no_grad():
            self.shape(self.parameter).copy_(value)


@hookimpl
def llmb_post_process_model(model):
    packed = set(linears(model, "_proj"))
    for name, module in list(model.named_modules()):
        if module in packed:
            owner, _, last = name.rpartition(".")
            setattr(model.get_submodule(owner), last, Packed(module))
    return model


@hookimpl
def llmb_parameter_map(model):
    views = {}
    for name, parameter in model.named_parameters():
        owner = model.get_submodule(name.rpartition(".")[0])
        width = owner.width if isinstance(owner, Packed) else None
        views[name.replace(".packed", ".weight")] = View(name, parameter, width)
    return views
