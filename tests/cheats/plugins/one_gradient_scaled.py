"""The gradient of one matrix is two hundredths too large."""

from llmb.plugin import hookimpl

from .kit import linears


@hookimpl
def llmb_post_process_model(model):
    parameter = linears(model, "layers.1.self_attn.q_proj")[0].weight
    parameter.register_hook(lambda gradient: gradient * 1.02)
    return model
