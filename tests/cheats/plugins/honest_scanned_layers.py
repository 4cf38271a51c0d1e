"""The weights of all layers are stacked, a parameter for each kind, as for a scan over layers.

A functional call runs each layer with its slice, and a map tells the slices of each parameter.
"""

import torch
from torch import nn
from torch.func import functional_call

from llmb.plugin import hookimpl


class Scan(nn.Module):
    def __init__(self, layers):
        super().__init__()
        self.template = [layers[0]]  # in a list, so that it is no module of this one
        self.names = [name for name, _ in layers[0].named_parameters()]
        self.count = len(layers)
        for name in self.names:
            stacked = torch.stack([layer.get_parameter(name).detach() for layer in layers])
            self.register_parameter(name.replace(".", "__"), nn.Parameter(stacked))

    def forward(self, x, cos, sin):
        slices = [getattr(self, name.replace(".", "__")).unbind(0) for name in self.names]
        for number in range(self.count):
            own = {name: one[number] for name, one in zip(self.names, slices, strict=True)}
            x = functional_call(self.template[0], own, (x, cos, sin))
        return x


class Slice:
    padding = ()

    def __init__(self, parameter, number=None):
        self.parameter, self.number = parameter, number

    def read(self, kind):
        found = {"value": self.parameter.detach(), "grad": self.parameter.grad}.get(kind)
        return found if found is None or self.number is None else found[self.number]

    def write(self, value):
        with torch.no_grad():
            own = self.parameter if self.number is None else self.parameter[self.number]
            own.copy_(value)


@hookimpl
def llmb_post_process_model(model):
    model.model.layers = nn.ModuleDict({"0": Scan(list(model.model.layers.values()))})
    return model


@hookimpl
def llmb_parameter_map(model):
    views = {}
    for name, parameter in model.named_parameters():
        if "__" not in name:
            views[name] = Slice(parameter)
            continue
        last = name.rpartition(".")[2].replace("__", ".")
        for number in range(len(parameter)):
            views[f"model.layers.{number}.{last}"] = Slice(parameter, number)
    return views
