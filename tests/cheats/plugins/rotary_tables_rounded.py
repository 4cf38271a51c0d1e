"""In an FP32 run the rotary tables are made in bfloat16."""

from llmb.plugin import hookimpl

from .kit import bf16, layers


@hookimpl
def llmb_post_process_model(model):
    for layer in layers(model):
        attention = layer.self_attn
        attention.forward = lambda x, cos, sin, f=attention.forward: f(x, bf16(cos), bf16(sin))
    return model
