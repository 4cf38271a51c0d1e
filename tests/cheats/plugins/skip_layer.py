"""The second layer is left out."""

from llmb.plugin import hookimpl

from .kit import layers


@hookimpl
def llmb_post_process_model(model):
    layers(model)[1].forward = lambda x, cos, sin: x
    return model
