"""The optimizer loses half of its parameters after the second step."""

from llmb.plugin import hookimpl

from .kit import in_caller, intercept


@hookimpl
def llmb_post_process_model(model):
    def step(number, forward, ids, labels):
        optimizer = in_caller("optimizer")
        if optimizer is not None and number == 3:
            group = optimizer.param_groups[0]
            group["params"] = group["params"][::2]
        return forward(ids, labels)

    return intercept(model, step)
