"""In a BF16 run the rotary angles are computed in bfloat16, where positions collapse."""

import torch

from llmb.plugin import hookimpl

from .kit import layers


@hookimpl
def llmb_post_process_model(model):
    def rounded(forward):
        def run(x, cos, sin):
            length, width = cos.shape
            exponent = torch.arange(0, width, 2).bfloat16() / width
            angle = torch.outer(torch.arange(length).bfloat16(), (10000.0**-exponent).bfloat16())
            angle = torch.cat((angle, angle), dim=-1)
            return forward(x, angle.cos(), angle.sin())

        return run

    for layer in layers(model):
        layer.self_attn.forward = rounded(layer.self_attn.forward)
    return model
