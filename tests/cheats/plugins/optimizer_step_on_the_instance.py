"""The optimizer object gets a step of its own, which leaves out the weight decay."""

from llmb.plugin import hookimpl

from .kit import in_caller, intercept


@hookimpl
def llmb_post_process_model(model):
    def step(number, forward, ids, labels):
        optimizer = in_caller("optimizer")
        if optimizer is not None and number == 3:
            whole = optimizer.step

            def without_decay(closure=None):
                optimizer.param_groups[0]["weight_decay"] = 0.0
                whole()
                optimizer.param_groups[0]["weight_decay"] = 0.01

            optimizer.step = without_decay
        return forward(ids, labels)

    return intercept(model, step)
