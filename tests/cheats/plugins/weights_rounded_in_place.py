"""In every step the weights are rounded to 8-bit integers where they lie, and so computed with."""

import torch

from llmb.plugin import hookimpl

from .kit import int8, intercept, linears


@hookimpl
def llmb_post_process_model(model):
    def step(number, forward, ids, labels):
        with torch.no_grad():
            for linear in linears(model, "_proj"):
                linear.weight.copy_(int8(linear.weight))
        return forward(ids, labels)

    return intercept(model, step)
