"""In an FP32 run the moments are kept in bfloat16 between steps."""

from llmb.plugin import hookimpl

from .kit import bf16, in_caller, intercept


@hookimpl
def llmb_post_process_model(model):
    def step(number, forward, ids, labels):
        optimizer = in_caller("optimizer")
        for state in optimizer.state.values() if optimizer is not None else ():
            for moment in ("exp_avg", "exp_avg_sq"):
                state[moment].copy_(bf16(state[moment]))
        return forward(ids, labels)

    return intercept(model, step)
