"""In a BF16 run the attention's scores and softmax stay in bfloat16."""

from llmb.plugin import hookimpl

from .kit import attend, causal, layers, with_attention


@hookimpl
def llmb_post_process_model(model):
    def narrow(q, k, v):
        return attend(q, k, v, causal(q.shape[-2]), narrow_softmax=True)

    for layer in layers(model):
        with_attention(layer.self_attn, narrow)
    return model
