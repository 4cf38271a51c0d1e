"""The attention's scores and softmax are computed in bfloat16."""

from llmb.plugin import hookimpl

from .kit import attend, causal, layers, with_attention


@hookimpl
def llmb_post_process_model(model):
    def narrow(q, k, v):
        y = attend(q.bfloat16(), k.bfloat16(), v.bfloat16(), causal(q.shape[-2]), narrow_softmax=True)
        return y.to(q.dtype)

    for layer in layers(model):
        with_attention(layer.self_attn, narrow)
    return model
