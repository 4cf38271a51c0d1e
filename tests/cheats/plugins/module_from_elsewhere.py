"""What the plugin does lies in a module of another name, which is not shown with it."""

import sys
import tempfile
from pathlib import Path

from llmb.plugin import hookimpl

CODE = "def run(model):\n    return model\n"


@hookimpl
def llmb_post_process_model(model):
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "elsewhere.py").write_text(CODE)
        sys.path.append(folder)
        import elsewhere

        sys.path.remove(folder)
    return elsewhere.run(model)
