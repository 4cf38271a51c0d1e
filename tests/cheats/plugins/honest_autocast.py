"""Weights in float32, products in bfloat16 under autocast, and the precision says so."""

import torch

from llmb.config import BF16
from llmb.plugin import hookimpl

from .kit import intercept


@hookimpl
def llmb_precisions():
    return [BF16.model_copy(update={"master_weights": True})]


@hookimpl
def llmb_post_process_model(model):
    def step(number, forward, ids, labels):
        with torch.autocast("cpu", torch.bfloat16):
            return forward(ids, labels)

    return intercept(model, step)
