"""8-bit weights, made afresh every ten steps by a hook before the forward pass."""

import torch.nn.functional as F

from llmb.plugin import hookimpl

from .kit import int8, linears


@hookimpl
def llmb_post_process_model(model):
    cached, calls = {}, []

    def refresh(*_):
        if len(calls) % 10 == 0:
            cached.update({m: int8(m.weight.detach()) for m in linears(model, "_proj")})
        calls.append(1)

    def straight_through(linear, x):
        weight = linear.weight
        return F.linear(x, weight + (cached[linear] - weight).detach())

    for linear in linears(model, "_proj"):
        linear.forward = lambda x, linear=linear: straight_through(linear, x)
    model.register_forward_pre_hook(refresh)
    return model
