"""Logits are capped softly at 30."""

import torch

from llmb.plugin import hookimpl


@hookimpl
def llmb_post_process_model(model):
    head = model.lm_head
    forward = head.forward
    head.forward = lambda x: 30 * torch.tanh(forward(x) / 30)
    return model
