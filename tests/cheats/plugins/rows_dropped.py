"""Of four sequences a step three are computed."""

from llmb.plugin import hookimpl

from .kit import intercept


@hookimpl
def llmb_post_process_model(model):
    return intercept(model, lambda number, forward, ids, labels: forward(ids[:3], labels[:3]))
