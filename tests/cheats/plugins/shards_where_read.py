"""Gradients are torch's DTensor, with a local part of the plugin's own class inside."""

import torch
from torch.autograd import Variable

from llmb.plugin import hookimpl


class WhereRead(torch.Tensor):
    @classmethod
    def __torch_function__(cls, function, types, arguments=(), named=None):
        return super().__torch_function__(function, types, arguments, named or {})


@hookimpl
def llmb_post_process_model(model):
    def disguise():
        for parameter in model.parameters():
            local = getattr(parameter.grad, "_local_tensor", None)
            if local is not None:
                parameter.grad._local_tensor = local.as_subclass(WhereRead)

    def later():
        Variable._execution_engine.queue_callback(disguise)

    def at_the_end(_):
        Variable._execution_engine.queue_callback(later)

    model.register_forward_hook(lambda *values: values[-1].register_hook(at_the_end) and None)
    return model
