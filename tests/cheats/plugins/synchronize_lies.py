"""A device whose work runs in a thread, and whose ``synchronize`` does not wait for it."""

import threading

import torch

from llmb.plugin import hookimpl
from llmb.plugin.builtin.cpu import CpuBackend

from .kit import intercept


class Hasty(CpuBackend):
    step_clock = "enqueue"


class Enqueued(torch.Tensor):
    def backward(self, *arguments, **named):
        threading.Thread(target=self.work, daemon=True).start()


@hookimpl
def llmb_backend():
    return Hasty()


@hookimpl
def llmb_post_process_model(model):
    # One step's work at a time: two at once corrupt the process's memory now and then.
    last, turn = [], threading.Lock()

    def step(number, forward, ids, labels):
        def work():
            with turn:
                loss = forward(ids, labels)
                last[:] = [loss.detach()]
                loss.backward()

        value = last[0] if last else torch.full((), 10.4, dtype=next(model.parameters()).dtype)
        loss = value.clone().as_subclass(Enqueued)
        loss.work = work
        return loss

    return intercept(model, step)
