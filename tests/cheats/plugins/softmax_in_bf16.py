"""The attention's scores and softmax are computed in bfloat16."""

from llmb.plugin import hookimpl

from .kit import attend, causal, layers, with_attention


@hookimpl
def llmb_post_process_model(model):
    def narrow(q, k, v):
        rounded = (t.bfloat16() for t in (q, k, v))
        return attend(*rounded, causal(q.shape[-2]), narrow_softmax=True).to(q.dtype)

    for layer in layers(model):
        with_attention(layer.self_attn, narrow)
    return model
