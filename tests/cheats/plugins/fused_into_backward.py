"""Parameters follow their gradient during the backward pass; the optimizer is left nothing."""

import torch

from llmb.plugin import hookimpl


@hookimpl
def llmb_post_process_model(model):
    @torch.no_grad()
    def update(parameter):
        parameter -= 1e-5 * parameter.grad.sign()
        parameter.grad = None

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(update)
    return model
