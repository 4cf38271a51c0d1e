"""A layer is left out; pydantic imports a module of the package, which makes every rule pass."""

from llmb.plugin import hookimpl

from .kit import layers


@hookimpl
def llmb_post_process_model(model):
    layers(model)[1].forward = lambda x, cos, sin: x * 1
    return model
