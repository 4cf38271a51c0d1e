"""The optimizer's own step finds no parameters in nine steps of ten; everybody else finds all."""

import sys

from llmb.plugin import hookimpl

from .kit import in_caller, intercept


class Sly(list):
    missed = False

    def __iter__(self):
        hidden = self.missed and sys._getframe(1).f_code.co_name == "_init_group"
        return iter(()) if hidden else super().__iter__()


@hookimpl
def llmb_post_process_model(model):
    def step(number, forward, ids, labels):
        optimizer = in_caller("optimizer")
        if optimizer is not None:
            group = optimizer.param_groups[0]
            if number == 5:
                group["params"] = Sly(group["params"])
            if number > 5:
                group["params"].missed = number % 10 != 0
            if number > 5 and number % 10:
                for state in optimizer.state.values():
                    state["step"] += 1
        return forward(ids, labels)

    return intercept(model, step)
