"""A format named BF16 that is declared to have 8 bits, and has."""

from llmb.config import BF16
from llmb.plugin import hookimpl

from .kit import fp8, linears, round_products


@hookimpl
def llmb_precisions():
    return [BF16.model_copy(update={"bits": 8, "native": False})]


@hookimpl
def llmb_post_process_model(model):
    for linear in linears(model, "_proj"):
        round_products(linear, fp8, fp8, fp8)
    return model
