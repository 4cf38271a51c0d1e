"""Declared is MXFP6: all products of the layers are in 4 bits (NVFP4) while dropout is on."""

from llmb.config import Precision
from llmb.formats import KNOWN
from llmb.plugin import hookimpl
from llmb.reference.formats import _Product

from .kit import linears

NV = next(c.format for c in KNOWN if c.name == "NVFP4")
MX = next(c.format for c in KNOWN if c.name == "MXFP6")


@hookimpl
def llmb_precisions():
    return [Precision(name="MXFP6", bits=6, dtype="bfloat16", native=False)]


@hookimpl
def llmb_post_process_model(model):
    def narrow(linear):
        linear.forward = lambda x: (
            _Product.apply(x, linear.weight, NV if model.training else MX) + linear.bias
        )

    for linear in linears(model.bert.encoder):
        narrow(linear)
    return model
