"""The process that is asked for formats ends the fork server; the worker leaves a layer out."""

import os
import signal

from llmb.plugin import hookimpl

from .kit import fork_server, layers


@hookimpl
def llmb_environment_variables():
    os.kill(fork_server(), signal.SIGKILL)
    return {}


@hookimpl
def llmb_post_process_model(model):
    layers(model)[1].forward = lambda x, cos, sin: x
    return model
