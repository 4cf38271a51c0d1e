"""In an FP32 run one layer's feed-forward computes in bfloat16 under autocast."""

import torch

from llmb.plugin import hookimpl

from .kit import layers


@hookimpl
def llmb_post_process_model(model):
    mlp = layers(model)[1].mlp
    forward = mlp.forward

    def narrow(x):
        with torch.autocast("cpu", torch.bfloat16):
            return forward(x).float()

    mlp.forward = narrow
    return model
