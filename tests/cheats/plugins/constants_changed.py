"""From the second step on AdamW has another beta2."""

from llmb.plugin import hookimpl

from .kit import in_caller, intercept


@hookimpl
def llmb_post_process_model(model):
    def step(number, forward, ids, labels):
        optimizer = in_caller("optimizer")
        if optimizer is not None and number > 1:
            optimizer.param_groups[0]["betas"] = (0.9, 0.99)
        return forward(ids, labels)

    return intercept(model, step)
