"""``torch.compile`` as a post-processing step that keeps every parameter's name."""

from __future__ import annotations

import shutil
import sysconfig
from importlib.util import find_spec
from pathlib import Path

from torch import nn

from llmb.config import environment

#: Untimed steps until everything is compiled and captured: the first compiles, the second runs
#: with the optimizer's state there, and graphs are captured in the two after that.
WARMUP_STEPS = 4


def compile_in_place(model: nn.Module, mode: str) -> nn.Module:
    """Return ``model``, whose ``forward`` is compiled with ``mode`` on its first call.

    In place: ``torch.compile(model)`` would wrap it and rename every parameter. Shapes are
    static, as those of the benchmark are.
    """
    model.compile(mode=None if mode == "default" else mode, dynamic=False)
    return model


def missing_for_compiling() -> str | None:
    """Return what torch.compile lacks to make code for an accelerator, None if nothing."""
    if find_spec("triton") is None:
        return "the Python package triton"
    compilers = (environment().get("CC"), "gcc", "clang")  # those that triton looks for
    if not any(shutil.which(name) for name in compilers if name):
        return "a C compiler (install gcc, or set CC)"
    if not _python_header().exists():  # triton compiles the launcher of its kernels against it
        return f"Python's header {_python_header()} (install python3-dev)"
    return None


def _python_header() -> Path:
    # Debian's "posix_local" names a folder for packages, where Python's own headers are not.
    scheme = sysconfig.get_default_scheme().replace("posix_local", "posix_prefix")
    return Path(sysconfig.get_path("include", scheme)) / "Python.h"
