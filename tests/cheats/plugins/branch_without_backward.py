"""Nothing flows back through the attention of the second layer to the layers before."""

from llmb.plugin import hookimpl

from .kit import layers


@hookimpl
def llmb_post_process_model(model):
    attention = layers(model)[1].self_attn
    forward = attention.forward
    attention.forward = lambda x, cos, sin: forward(x.detach(), cos, sin)
    return model
