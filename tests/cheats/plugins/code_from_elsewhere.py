"""What the plugin does lies in a file that is none of its package's."""

import os
import tempfile
from pathlib import Path

from llmb.plugin import hookimpl

CODE = """
def run(model):
    return model
"""


@hookimpl
def llmb_post_process_model(model):
    path = Path(tempfile.gettempdir()) / f"elsewhere-{os.getpid()}.py"
    path.write_text(CODE)
    names = {}
    exec(compile(path.read_text(), str(path), "exec"), names)
    path.unlink()
    forward = model.model.layers["0"].mlp.act = names["run"]
    return forward(model)
