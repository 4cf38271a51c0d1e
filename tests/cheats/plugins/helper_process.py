"""A second process works for the model: a device more than the record knows of."""

import subprocess
import sys

from llmb.plugin import hookimpl

children = []


@hookimpl
def llmb_post_process_model(model):
    code = "import time\nwhile True: time.sleep(0.05)"
    children.append(subprocess.Popen([sys.executable, "-c", code]))
    return model
