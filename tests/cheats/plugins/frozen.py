"""Half of the parameters are not trained."""

from llmb.plugin import hookimpl

from .kit import layers


@hookimpl
def llmb_post_process_model(model):
    for parameter in layers(model)[0].parameters():
        parameter.requires_grad_(False)
    return model
