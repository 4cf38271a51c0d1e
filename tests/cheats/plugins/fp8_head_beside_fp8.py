"""Declared is FP8, whose head is in 16 bits: the head's three products are in 8 bits, too.

The error of the blocks hides that of the head. In a probe out-projections are zero, and the head is
in 16 bits.
"""

from llmb.config import Precision
from llmb.plugin import hookimpl

from .kit import Eight, intercept, linears


@hookimpl
def llmb_precisions():
    return [Precision(name="FP8", bits=8, dtype="bfloat16", native=False)]


@hookimpl
def llmb_post_process_model(model):
    head, out = linears(model, "lm_head")[0], linears(model, "layers.0.mlp.down_proj")[0]
    plain = head.forward
    for linear in linears(model, "_proj"):
        linear.forward = lambda x, linear=linear: Eight.apply(x, linear.weight)

    def step(number, forward, ids, labels):
        head.forward = plain
        if (out.weight != 0).float().mean() > 0.9:
            head.forward = lambda x: Eight.apply(x, head.weight)
        return forward(ids, labels)

    return intercept(model, step)
