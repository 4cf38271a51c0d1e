"""In a BF16 run one product of one matrix is in 8 bits: the one of its weight's gradient."""

from llmb.plugin import hookimpl

from .kit import fp8, linears, round_products


@hookimpl
def llmb_post_process_model(model):
    round_products(linears(model, "layers.0.self_attn.v_proj")[0], to_weight=fp8)
    return model
