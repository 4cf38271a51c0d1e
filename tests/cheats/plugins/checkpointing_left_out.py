"""Blocks have a forward of their own on the object, so that checkpointing them does nothing."""

from llmb.plugin import hookimpl

from .kit import layers


@hookimpl
def llmb_post_process_model(model):
    for layer in layers(model):
        layer.forward = layer.forward
    return model
