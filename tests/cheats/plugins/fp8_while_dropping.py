"""BERT: all products of the layers are in 8 bits, while the model is in training."""

import torch

from llmb.plugin import hookimpl

from .kit import Product, fp8, linears


@hookimpl
def llmb_post_process_model(model):
    def narrow(linear):
        plain = linear.forward

        def product(x):
            if not model.training:
                return plain(x)
            x, w, bias = (v.to(torch.bfloat16) for v in (x, linear.weight, linear.bias))
            return Product.apply(x, w, fp8, fp8, fp8) + bias

        linear.forward = product

    for linear in linears(model.bert.encoder):
        narrow(linear)
    return model
