"""Matrices lie column by column in memory, as some devices want them."""

from torch import nn

from llmb.plugin import hookimpl

from .kit import linears


@hookimpl
def llmb_post_process_model(model):
    for linear in linears(model):
        linear.weight = nn.Parameter(linear.weight.detach().t().contiguous().t())
    return model
