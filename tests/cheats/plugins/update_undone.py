"""After five steps the optimizer holds no parameter in nine steps of ten; its counters go on."""

from llmb.plugin import hookimpl

from .kit import in_caller, intercept


@hookimpl
def llmb_post_process_model(model):
    held = []

    def step(number, forward, ids, labels):
        optimizer = in_caller("optimizer")
        if optimizer is None:
            return forward(ids, labels)
        group = optimizer.param_groups[0]
        held[:] = held or group["params"]
        group["params"] = list(held) if number <= 5 or number % 10 == 0 else []
        if not group["params"]:
            for state in optimizer.state.values():
                state["step"] += 1
        return forward(ids, labels)

    return intercept(model, step)
