"""BF16 products and attention in FP32, rounded once, as a processor without BF16 computes them."""

from llmb.config import BF16
from llmb.plugin import hookimpl
from llmb.plugin.builtin.wide import widen_products


@hookimpl
def llmb_precisions():
    return [BF16.model_copy(update={"native": False, "products": "FP32"})]


@hookimpl
def llmb_post_process_model(model):
    widen_products(model)
    return model
