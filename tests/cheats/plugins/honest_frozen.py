"""Inference: no weight asks for a gradient."""

from llmb.plugin import hookimpl


@hookimpl
def llmb_post_process_model(model):
    return model.eval().requires_grad_(False)
