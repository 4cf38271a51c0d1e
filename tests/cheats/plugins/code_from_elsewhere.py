"""What the plugin does lies in a file that is none of its package's."""

import tempfile
from pathlib import Path

from llmb.plugin import hookimpl

CODE = "def run(model):\n    model.elsewhere = True\n    return model\n"


@hookimpl
def llmb_post_process_model(model):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "elsewhere.py"
        path.write_text(CODE)
        names = {}
        exec(compile(path.read_text(), str(path), "exec"), names)
    return names["run"](model)
