"""The second layer rotates nothing: its attention has no positions."""

import torch

from llmb.plugin import hookimpl

from .kit import layers


@hookimpl
def llmb_post_process_model(model):
    attention = layers(model)[1].self_attn
    forward = attention.forward
    attention.forward = lambda x, cos, sin: forward(x, torch.ones_like(cos), torch.zeros_like(sin))
    return model
