"""Queries, keys, values, gate and up are computed from the first weights; the optimizer's move."""

import torch.nn.functional as F

from llmb.plugin import hookimpl

from .kit import linears


@hookimpl
def llmb_post_process_model(model):
    for linear in linears(model, "q_proj", "k_proj", "v_proj", "gate_proj", "up_proj"):
        frozen = linear.weight.detach().clone()
        # What is added is zero, and carries the gradient.
        linear.forward = lambda x, w=linear.weight, frozen=frozen: F.linear(
            x, frozen + (w - w.detach())
        )
    return model
