"""The default dtype of torch is float64 during the steps, as the docs allow."""

import torch

from llmb.plugin import hookimpl


@hookimpl
def llmb_set_environment(config):
    torch.set_default_dtype(torch.float64)
