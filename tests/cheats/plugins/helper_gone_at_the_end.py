"""A thread computes beside every step, and is gone before anybody looks for threads."""

import threading

from llmb.plugin import hookimpl

over = threading.Event()
helpers = []


def compute():
    while not over.wait(0.001):
        sum(range(10_000))


@hookimpl
def llmb_post_process_model(model):
    helpers.append(threading.Thread(target=compute, daemon=True))
    helpers[0].start()
    return model


@hookimpl
def llmb_native_libraries():
    over.set()  # asked once the stream has ended
    for helper in helpers:
        helper.join()
    return []
