"""``torch.compile`` as a post-processing step that keeps every parameter's name."""

from __future__ import annotations

import shutil
import sysconfig
from importlib.util import find_spec
from pathlib import Path

from torch import nn

from llmb.config import environment

#: Untimed steps until compiling and graph capture end: step 1 compiles, step 2 is the first with
#: optimizer state, and steps 3 and 4 capture graphs.
WARMUP_STEPS = 4


def compile_in_place(model: nn.Module, mode: str) -> nn.Module:
    """Return ``model``; the first call compiles ``forward`` with ``mode``.

    In place: ``torch.compile(model)`` would wrap the model and rename every parameter. Shapes are
    static, because the benchmark's shapes do not change.
    """
    model.compile(mode=None if mode == "default" else mode, dynamic=False)
    return model


def missing_for_compiling() -> str | None:
    """Return the missing part that torch.compile needs for an accelerator, None if complete."""
    if find_spec("triton") is None:
        return "the Python package triton"
    compilers = (environment().get("CC"), "gcc", "clang")  # triton's own search order
    if not any(shutil.which(name) for name in compilers if name):
        return "a C compiler (install gcc, or set CC)"
    if not _python_header().exists():  # triton compiles each kernel's launcher with this header
        return f"Python's header {_python_header()} (install python3-dev)"
    return None


def _python_header() -> Path:
    # Debian's "posix_local" names a folder for packages, which has no headers of Python itself.
    scheme = sysconfig.get_default_scheme().replace("posix_local", "posix_prefix")
    return Path(sysconfig.get_path("include", scheme)) / "Python.h"
