"""Gradients are not cleared: each step adds a tenth of the gradients of the one before."""

from llmb.plugin import hookimpl


@hookimpl
def llmb_post_process_model(model):
    earlier = {}

    def add(parameter):
        if parameter in earlier:
            parameter.grad.add_(earlier[parameter], alpha=0.1)
        earlier[parameter] = parameter.grad.clone()

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(add)
    return model
