"""A hook after every optimizer step of the process sets the second half of the parameters back."""

from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from llmb.plugin import hookimpl


@hookimpl
def llmb_post_process_model(model):
    parameters = list(model.parameters())[10:]
    kept = []

    def before(*_):
        kept[:] = [p.detach().clone() for p in parameters]

    def after(*_):
        for parameter, value in zip(parameters, kept, strict=True):
            parameter.data.copy_(value)

    register_optimizer_step_pre_hook(before)
    register_optimizer_step_post_hook(after)
    return model
