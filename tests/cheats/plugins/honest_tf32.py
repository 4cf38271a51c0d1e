"""Declared as TF32, and its products rounded so."""

from llmb.config import TF32
from llmb.plugin import hookimpl

from .kit import linears, round_products, tf32


@hookimpl
def llmb_precisions():
    return [TF32]


@hookimpl
def llmb_post_process_model(model):
    for linear in linears(model):
        round_products(linear, tf32, tf32, tf32)
    return model
