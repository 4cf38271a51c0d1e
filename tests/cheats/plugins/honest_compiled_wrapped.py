"""torch.compile wraps the model, which puts a prefix before every parameter's name."""

import torch

from llmb.plugin import hookimpl


@hookimpl
def llmb_warmup_steps():
    return 4


@hookimpl
def llmb_post_process_model(model):
    return torch.compile(model)
