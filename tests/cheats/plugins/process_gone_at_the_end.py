"""A second process computes beside every step, and is gone before anybody looks for processes."""

import subprocess
import sys

from llmb.plugin import hookimpl

children = []


def end():
    while children:
        children[0].kill()
        children.pop().wait()


def beside(*_):
    end()
    code = "while True: sum(range(10_000))"
    children.append(subprocess.Popen([sys.executable, "-c", code]))


@hookimpl
def llmb_post_process_model(model):
    model.register_forward_pre_hook(beside)
    return model


@hookimpl
def llmb_native_libraries():
    end()  # asked once the stream has ended
    return []
