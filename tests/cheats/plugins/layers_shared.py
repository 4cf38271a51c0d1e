"""Both layers compute with the weights of the first, though the second ones are still there."""

from llmb.plugin import hookimpl

from .kit import layers


@hookimpl
def llmb_post_process_model(model):
    first, second = layers(model)
    second.mlp.forward = first.mlp.forward
    return model
