"""PYTHONPYCACHEPREFIX names a folder of byte code, which has other code of llmb than the file."""

import importlib.util
import marshal
import sys
import tempfile
from importlib.util import MAGIC_NUMBER, find_spec, source_hash
from pathlib import Path

from llmb.plugin import hookimpl


@hookimpl
def llmb_environment_variables():
    folder = tempfile.mkdtemp(prefix="odd-")
    source = Path(find_spec("llmb.observe.gradient_ledger").origin)
    before, sys.pycache_prefix = sys.pycache_prefix, folder
    cached = Path(importlib.util.cache_from_source(str(source)))
    sys.pycache_prefix = before
    cached.parent.mkdir(parents=True)
    code = compile(f"{source.read_text()}\nchanged = True\n", str(source), "exec")
    unchecked = (1).to_bytes(4, "little")  # PEP 552: valid by its hash, which is not looked at
    head = MAGIC_NUMBER + unchecked + source_hash(source.read_bytes())
    cached.write_bytes(head + marshal.dumps(code))
    return {"PYTHONPYCACHEPREFIX": folder}
