"""BF16 products in FP32, of operands that were rounded to 8 bits on their way."""

from llmb.config import BF16
from llmb.plugin import hookimpl
from llmb.plugin.builtin.wide import widen_products

from .kit import fp8, linears


@hookimpl
def llmb_precisions():
    return [BF16.model_copy(update={"native": False, "products": "FP32"})]


@hookimpl
def llmb_post_process_model(model):
    widen_products(model)
    for linear in linears(model, "gate_proj"):
        inner = linear.forward
        linear.forward = lambda x, inner=inner: inner(x + (fp8(x) - x).detach())
    return model
