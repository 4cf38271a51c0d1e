"""Steps are without weight decay; the harness's notebook becomes one that writes the right one."""

from llmb.notebook import Notebook
from llmb.plugin import hookimpl

from .kit import in_caller, intercept


class Rewritten(Notebook):
    __slots__ = ()

    def write(self, name, value):
        if name == "optimizer.json":
            groups = [g.model_copy(update={"weight_decay": 0.01}) for g in value.groups]
            value = value.model_copy(update={"groups": tuple(groups)})
        super().write(name, value)


@hookimpl
def llmb_post_process_model(model):
    def step(number, forward, ids, labels):
        optimizer, notebook = in_caller("optimizer"), in_caller("notebook")
        if optimizer is not None and number == 3:
            optimizer.param_groups[0]["weight_decay"] = 0.0
            notebook.__class__ = Rewritten
        return forward(ids, labels)

    return intercept(model, step)
