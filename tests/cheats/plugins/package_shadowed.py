"""The children's search path begins with a package that stands in front of a library of llmb's."""

import tempfile
from pathlib import Path

from llmb.plugin import hookimpl

CODE = """
import sys
here = sys.path.pop(0)
del sys.modules["safetensors"]
import safetensors
sys.path.insert(0, here)
sys.modules["safetensors"] = safetensors
shadowed = True
"""


@hookimpl
def llmb_environment_variables():
    folder = Path(tempfile.mkdtemp(prefix="shadow-"))
    (folder / "safetensors.py").write_text(CODE)
    import os

    return {"PYTHONPATH": os.pathsep.join((str(folder), os.environ.get("PYTHONPATH", "")))}
