"""In one step of ten the optimizer does not find one matrix; everybody else finds all of them."""

import sys

from llmb.plugin import hookimpl

from .kit import in_caller, intercept, layers


class Sly(list):
    hidden = None

    def __iter__(self):
        every = super().__iter__()
        if self.hidden is None or sys._getframe(1).f_code.co_name != "_init_group":
            return every
        return (one for one in every if one is not self.hidden)


@hookimpl
def llmb_post_process_model(model):
    matrix = layers(model)[0].mlp.up_proj.weight

    def step(number, forward, ids, labels):
        optimizer = in_caller("optimizer")
        if optimizer is not None:
            group = optimizer.param_groups[0]
            if number == 3:
                group["params"] = Sly(group["params"])
            if number >= 3:
                missed = number % 10 == 0
                group["params"].hidden = matrix if missed else None
                if missed:
                    optimizer.state[matrix]["step"] += 1
        return forward(ids, labels)

    return intercept(model, step)
