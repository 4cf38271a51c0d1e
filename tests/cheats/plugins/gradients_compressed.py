"""Gradients are rounded to 8 bits, as a compressed all-reduce would."""

import torch

from llmb.plugin import hookimpl

from .kit import fp8


@hookimpl
def llmb_post_process_model(model):
    def compress(parameter):
        parameter.grad.copy_(fp8(parameter.grad, torch.float8_e5m2))

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(compress)
    return model
