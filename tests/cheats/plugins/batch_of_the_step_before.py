"""A static input buffer is filled after the step that should have read it."""

from llmb.plugin import hookimpl

from .kit import intercept


@hookimpl
def llmb_post_process_model(model):
    buffer = []

    def step(number, forward, ids, labels):
        buffer.append(ids.clone())
        present = buffer.pop(0) if len(buffer) > 1 else buffer[0]
        return forward(present, present)

    return intercept(model, step)
