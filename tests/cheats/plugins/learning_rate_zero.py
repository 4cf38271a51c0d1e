"""The learning rate is zero for the optimizer's own step, and right for everybody else."""

import sys

from llmb.plugin import hookimpl

from .kit import in_caller, intercept


class Shy(dict):
    def __getitem__(self, key):
        asked_by = sys._getframe(1).f_code
        if key == "lr" and asked_by.co_name == "step" and "adam" in asked_by.co_filename:
            return 0.0
        return super().__getitem__(key)


@hookimpl
def llmb_post_process_model(model):
    def step(number, forward, ids, labels):
        optimizer = in_caller("optimizer")
        if optimizer is not None and number == 3:
            optimizer.param_groups[0] = Shy(optimizer.param_groups[0])
        return forward(ids, labels)

    return intercept(model, step)
