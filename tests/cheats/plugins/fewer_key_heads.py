"""Two of four key and value heads of one layer serve all queries."""

from llmb.plugin import hookimpl

from .kit import attend, causal, layers, with_attention


@hookimpl
def llmb_post_process_model(model):
    def grouped(q, k, v):
        k, v = (t[:, ::2].repeat_interleave(2, dim=1) for t in (k, v))
        return attend(q, k, v, causal(q.shape[-2]))

    with_attention(layers(model)[0].self_attn, grouped)
    return model
