"""hardswish stands for silu in one layer."""

import torch.nn.functional as F

from llmb.plugin import hookimpl

from .kit import layers


@hookimpl
def llmb_post_process_model(model):
    mlp = layers(model)[1].mlp
    mlp.forward = lambda x: mlp.down_proj(F.hardswish(mlp.gate_proj(x)) * mlp.up_proj(x))
    return model
