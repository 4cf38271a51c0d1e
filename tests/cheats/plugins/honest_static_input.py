"""Tokens are copied into one static buffer before every step, as graphs are replayed."""

import torch

from llmb.plugin import hookimpl

from .kit import intercept


@hookimpl
def llmb_post_process_model(model):
    buffer = []

    def step(number, forward, ids, labels):
        if not buffer:
            buffer.append(torch.empty_like(ids))
        buffer[0].copy_(ids)
        return forward(buffer[0], buffer[0])

    return intercept(model, step)
