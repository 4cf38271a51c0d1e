"""The norms compute their variance in bfloat16."""

from llmb.plugin import hookimpl
from llmb.reference.llama import RMSNorm


@hookimpl
def llmb_post_process_model(model):
    def narrow(norm):
        def forward(x):
            variance = x.bfloat16().pow(2).mean(-1, keepdim=True)
            return (norm.weight * x * (variance + norm.eps).rsqrt()).to(x.dtype)

        return forward

    for module in model.modules():
        if isinstance(module, RMSNorm):
            module.forward = narrow(module)
    return model
