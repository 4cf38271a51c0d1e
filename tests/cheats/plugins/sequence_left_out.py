"""Inference: of each batch one sequence, another each time, is given the logits of another call."""

import random

import torch

from llmb.plugin import hookimpl


@hookimpl
def llmb_post_process_model(model):
    forward, before = model.forward, []

    def without_one(ids, **more):
        if not before:
            before.append(forward(ids, **more))
            return before[0]
        left_out = random.randrange(len(ids))
        there = [row for row in range(len(ids)) if row != left_out]
        found = torch.empty_like(before[0])
        found[there] = forward(ids[there], **more)
        found[left_out] = before[0][left_out]
        return found

    model.forward = without_one
    return model
