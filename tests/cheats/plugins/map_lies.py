"""The parameter map shows honest values, the model computes with 8-bit ones made of them."""

import torch
import torch.nn.functional as F

from llmb.plugin import hookimpl

from .kit import int8, linears


class Shown:
    padding = ()

    def __init__(self, parameter, refresh):
        self.parameter, self.refresh = parameter, refresh

    def read(self, kind):
        return {"value": self.parameter.detach(), "grad": self.parameter.grad}.get(kind)

    def write(self, value):
        with torch.no_grad():
            self.parameter.copy_(value)
        self.refresh()


@hookimpl
def llmb_post_process_model(model):
    used = model.used = {}
    model.refresh = lambda: used.update({m: int8(m.weight.detach()) for m in linears(model)})
    model.refresh()
    for linear in linears(model):
        linear.forward = lambda x, m=linear: F.linear(x, m.weight + (used[m] - m.weight).detach())
    return model


@hookimpl
def llmb_parameter_map(model):
    return {name: Shown(p, model.refresh) for name, p in model.named_parameters()}
