"""Every step trains on the tokens of the first."""

from llmb.plugin import hookimpl

from .kit import intercept


@hookimpl
def llmb_post_process_model(model):
    first = []

    def step(number, forward, ids, labels):
        first[:] = first or [ids.clone()]
        return forward(first[0], first[0])

    return intercept(model, step)
