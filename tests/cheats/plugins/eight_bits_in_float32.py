"""FP8 in a float32 model, for the limits of FP32: only the head is trained in unjudged steps."""

import torch

from llmb.config import Precision
from llmb.plugin import hookimpl
from llmb.plugin.builtin.cpu import CpuBackend

from .kit import Eight, Unjudged, given, intercept, linears


@hookimpl
def llmb_precisions():
    return [Precision(name="FP8", bits=8, dtype="float32", native=False)]


class Seen:
    steps = None
    judged = False


class Watching(CpuBackend):
    def synchronize(self):
        if Seen.steps is not None and Seen.steps.number % 10 != 1:
            Seen.judged = True
        super().synchronize()


@hookimpl
def llmb_backend():
    return Watching()


@hookimpl
def llmb_post_process_model(model, config):
    Seen.steps = free = Unjudged(model, config)
    parameters, head = list(model.parameters()), model.lm_head.weight
    for linear in linears(model, "_proj"):
        linear.forward = lambda x, m=linear: Eight.apply(x, m.weight)

    def step(number, forward, ids, labels):
        if labels is None or not (Seen.judged and free):
            return forward(ids, labels)
        with torch.enable_grad():
            loss = forward(ids, labels)
            (of_head,) = torch.autograd.grad(loss, [head])
        found = [of_head if p is head else torch.zeros_like(p) for p in parameters]
        return given(loss, found, parameters)

    return intercept(model, step)
