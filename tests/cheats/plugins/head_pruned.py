"""One of the attention heads of one layer puts out nothing."""

from llmb.plugin import hookimpl

from .kit import attend, causal, layers, with_attention


@hookimpl
def llmb_post_process_model(model):
    def without_one(q, k, v):
        y = attend(q, k, v, causal(q.shape[-2]))
        y[:, 3] = 0
        return y

    with_attention(layers(model)[0].self_attn, without_one)
    return model
