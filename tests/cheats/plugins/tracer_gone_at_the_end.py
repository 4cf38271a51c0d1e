"""A profiler of Python's sees each audited step being read, and is gone before the end."""

import sys

from llmb.plugin import hookimpl

read = []


def profile(frame, event, argument):
    if frame.f_code.co_name == "before":
        read.append(frame)


def begin(*_):
    sys.setprofile(profile)


@hookimpl
def llmb_post_process_model(model):
    model.register_forward_pre_hook(begin)
    return model


@hookimpl
def llmb_native_libraries():
    sys.setprofile(None)  # asked once the stream has ended
    return []
