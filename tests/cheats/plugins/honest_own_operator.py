"""The gated product is an operator of the vendor's own, with its backward pass."""

import torch
import torch.nn.functional as F

from llmb.plugin import hookimpl

from .kit import layers


@torch.library.custom_op("odd::gated", mutates_args=())
def gated(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    return F.silu(gate) * up


def keep(ctx, inputs, output):
    ctx.save_for_backward(*inputs)


def back(ctx, grad):
    gate, up = ctx.saved_tensors
    wide, sigmoid = gate.float(), gate.float().sigmoid()
    slope = (sigmoid * (1 + wide * (1 - sigmoid))).to(gate.dtype)
    return grad * up * slope, grad * F.silu(gate)


gated.register_autograd(back, setup_context=keep)


@hookimpl
def llmb_post_process_model(model):
    for layer in layers(model):
        mlp = layer.mlp
        mlp.forward = lambda x, m=mlp: m.down_proj(gated(m.gate_proj(x), m.up_proj(x)))
    return model
