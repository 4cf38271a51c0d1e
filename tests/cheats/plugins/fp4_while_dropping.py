"""BERT: all products of the layers are in 4 bits (NVFP4), while the model is in training."""

import torch

from llmb.formats import KNOWN
from llmb.plugin import hookimpl
from llmb.reference.formats import _Product

from .kit import linears

DATA = next(c.format for c in KNOWN if c.name == "NVFP4")


@hookimpl
def llmb_post_process_model(model):
    def narrow(linear):
        plain = linear.forward

        def product(x):
            if not model.training:
                return plain(x)
            x, w, bias = (v.to(torch.bfloat16) for v in (x, linear.weight, linear.bias))
            return _Product.apply(x, w, DATA) + bias

        linear.forward = product

    for linear in linears(model.bert.encoder):
        narrow(linear)
    return model
