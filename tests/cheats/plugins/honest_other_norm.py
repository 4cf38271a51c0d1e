"""torch's own RMS norm takes the place of the one that is spelled out."""

import torch.nn.functional as F

from llmb.plugin import hookimpl
from llmb.reference.llama import RMSNorm


@hookimpl
def llmb_post_process_model(model):
    for module in model.modules():
        if isinstance(module, RMSNorm):
            module.forward = lambda x, m=module: F.rms_norm(x, m.weight.shape, m.weight, m.eps)
    return model
