"""The second layer is left out of about half of all steps, from the sixth on."""

import random

from llmb.plugin import hookimpl

from .kit import intercept, layers


@hookimpl
def llmb_post_process_model(model):
    layer = layers(model)[1]
    whole = layer.forward

    def step(number, forward, ids, labels):
        left_out = number > 5 and random.random() < 0.5
        layer.forward = (lambda x, cos, sin: x) if left_out else whole
        return forward(ids, labels)

    return intercept(model, step)
