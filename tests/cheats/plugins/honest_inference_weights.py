"""Inference: weights are laid out anew in inference mode and ask for no gradients."""

import torch
from torch import nn

from llmb.plugin import hookimpl

from .kit import linears


@hookimpl
def llmb_post_process_model(model):
    with torch.inference_mode():
        for linear in linears(model):
            linear.weight = nn.Parameter(linear.weight.t().contiguous().t(), requires_grad=False)
    return model
