"""A thread that is declared to take 1 % of a core computes all the time."""

import threading

from llmb.plugin import DeclaredHelper, hookimpl


def compute():
    while True:
        sum(range(10_000))


@hookimpl
def llmb_helpers():
    return [DeclaredHelper(name="sensor", reason="reads a sensor", cpu_share=0.01)]


@hookimpl
def llmb_post_process_model(model):
    threading.Thread(target=compute, name="sensor", daemon=True).start()
    return model
