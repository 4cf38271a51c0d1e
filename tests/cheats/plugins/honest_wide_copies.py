"""BF16 products in FP32, from widened copies that follow every change of the weights."""

from llmb.config import BF16
from llmb.plugin import hookimpl

from .kit import Widened, linears


@hookimpl
def llmb_precisions():
    return [BF16.model_copy(update={"native": False, "products": "FP32"})]


@hookimpl
def llmb_post_process_model(model):
    for linear in linears(model):
        linear.forward = Widened(linear, refresh=lambda weight, copy: True)
    return model
