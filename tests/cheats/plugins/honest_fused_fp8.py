"""FP8 with one scale for queries, keys and values, which are stored in one parameter."""

from llmb.config import Precision
from llmb.plugin import hookimpl

from .kit import Eight, FusedAttention, fused_views, layers, linears


@hookimpl
def llmb_precisions():
    return [Precision(name="FP8", bits=8, dtype="bfloat16", native=False)]


@hookimpl
def llmb_post_process_model(model):
    for layer in layers(model):
        layer.self_attn = FusedAttention(layer.self_attn)
    for one in linears(model):
        if one is not model.lm_head:
            one.forward = lambda x, m=one: Eight.apply(x, m.weight)
    return model


@hookimpl
def llmb_parameter_map(model):
    return fused_views(model)
