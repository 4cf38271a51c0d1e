"""Declared as FP8: the blocks multiply in 8 bits, gradients in the wider of the two formats."""

from llmb.config import Precision
from llmb.plugin import hookimpl

from .kit import Eight, linears


@hookimpl
def llmb_precisions():
    return [Precision(name="FP8", bits=8, dtype="bfloat16")]


@hookimpl
def llmb_post_process_model(model):
    for linear in linears(model, "_proj"):
        linear.forward = lambda x, m=linear: Eight.apply(x, m.weight)
    return model
