"""Every module and parameter is a deep copy of what it was."""

import copy

from llmb.plugin import hookimpl


@hookimpl
def llmb_post_process_model(model):
    return copy.deepcopy(model)
