"""The second layer is left out, but of no step before the sixth."""

from llmb.plugin import hookimpl

from .kit import intercept, layers


@hookimpl
def llmb_post_process_model(model):
    layer = layers(model)[1]

    def step(number, forward, ids, labels):
        if number == 6:
            layer.forward = lambda x, cos, sin: x * 1
        return forward(ids, labels)

    return intercept(model, step)
