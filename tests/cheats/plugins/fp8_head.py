"""In a BF16 run the head alone multiplies in 8 bits, forward only."""

from llmb.plugin import hookimpl

from .kit import fp8, linears, round_products


@hookimpl
def llmb_post_process_model(model):
    round_products(linears(model, "lm_head")[0], fp8)
    return model
