"""The plugin's file is exchanged for a harmless one as soon as it has been loaded."""

import atexit
from pathlib import Path

from llmb.plugin import hookimpl

from .kit import layers

atexit.register(lambda: None)


@hookimpl
def llmb_post_process_model(model):
    layers(model)[1].forward = lambda x, cos, sin: x * 1
    text = '"""Nothing is changed."""\nfrom .kit import llmb_precisions\n'
    Path(__file__).write_text(text)
    return model
