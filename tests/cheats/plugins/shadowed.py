"""The model computes from a hidden copy of its weights, refreshed every ten steps."""

import copy

import torch

from llmb.plugin import hookimpl

from .kit import given, intercept


@hookimpl
def llmb_post_process_model(model):
    hidden = copy.deepcopy(model)

    def step(number, forward, ids, labels):
        if number % 10 == 0:
            hidden.load_state_dict(model.state_dict())
        loss = hidden(ids, labels=labels)
        gradients = torch.autograd.grad(loss, list(hidden.parameters()))
        return given(loss, gradients, model.parameters())

    return intercept(model, step)
