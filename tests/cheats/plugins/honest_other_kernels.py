"""A backend that computes products with other kernels than torch's usual ones, without oneDNN."""

import torch

from llmb.plugin import hookimpl


@hookimpl
def llmb_set_environment():
    torch.backends.mkldnn.enabled = False
