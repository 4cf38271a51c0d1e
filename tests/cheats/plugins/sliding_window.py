"""Attention looks back over seven eighths of the sequence."""

from llmb.plugin import hookimpl

from .kit import attend, causal, layers, with_attention


@hookimpl
def llmb_post_process_model(model):
    def windowed(q, k, v):
        length = q.shape[-2]
        seen = causal(length)
        return attend(q, k, v, seen & ~seen.tril(-length * 7 // 8))

    for layer in layers(model):
        with_attention(layer.self_attn, windowed)
    return model
