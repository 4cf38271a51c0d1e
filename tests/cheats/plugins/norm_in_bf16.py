"""In a BF16 run the norms compute their variance in bfloat16."""

import torch

from llmb.plugin import hookimpl
from llmb.reference.llama import RMSNorm


@hookimpl
def llmb_post_process_model(model):
    def narrow(norm):
        def forward(x):
            return norm.weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + norm.eps)

        return forward

    for module in model.modules():
        if isinstance(module, RMSNorm):
            module.forward = narrow(module)
    return model
