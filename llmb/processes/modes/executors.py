"""The executors of a model's Python code: none (eager), torch's compiler, or thunder."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn

from llmb.config import THUNDER, RunConfig
from llmb.errors import UnavailableError

#: A callable model, or a callable step.
Program = Callable[..., Any]

#: Methods of torch.Tensor that thunder 0.2.6 looks up and never calls; removed from torch 2.13.
_GONE = ("align_as", "align_to", "has_names", "refine_names", "rename")


def prepare(config: RunConfig) -> bool:
    """Import the executor's package, before the baseline of torch is taken.

    Returns whether a package was imported.

    Raises:
        UnavailableError: the package does not work with this torch.
    """
    if config.executor != "thunder":
        return False
    for name in _GONE:
        if not hasattr(Tensor, name):
            setattr(Tensor, name, _absent(name))
    try:
        import_module("thunder")
    except Exception as error:  # whatever a library's import can raise
        raise UnavailableError(
            f"--executor thunder: it cannot be imported with torch {torch.__version__} "
            f"({type(error).__name__}: {error}); {THUNDER}"
        ) from error
    return True


def _absent(name: str) -> Callable[..., None]:
    def absent(*arguments: object, **named: object) -> None:
        raise NotImplementedError(f"torch.Tensor.{name} is gone from this torch")

    absent.__name__, absent.__qualname__ = name, f"Tensor.{name}"
    return absent


def program(what: nn.Module, config: RunConfig) -> Program:
    """Return ``what`` as the executor of ``config`` runs it; parameters stay the same objects."""
    if config.executor == "eager":
        return what
    if config.executor == "thunder":
        jitted: Program = import_module("thunder").jit(what)
        return jitted
    compiled: Program = torch.compile(what, **_how(config))
    return compiled


def compile_each(blocks: Iterable[nn.Module], config: RunConfig) -> None:
    """Let torch's compiler make a program of each block, in place.

    Between blocks ranks gather parameters, and a program of the whole model could not.
    """
    for block in blocks:
        block.compile(**_how(config))


def draw_as_eager() -> None:
    """Let compiled dropout draw the masks that eager dropout draws (rule G1).

    Nothing is compiled without this module of torch, which ``torch.compile`` imports.
    """
    config: Any = sys.modules.get("torch._inductor.config")
    if config is not None:
        config.fallback_random = True


def _how(config: RunConfig) -> dict[str, Any]:
    mode = None if config.compile_mode == "default" else config.compile_mode
    # Static unless asked for: otherwise the second length makes the compiler guess.
    return {"mode": mode, "fullgraph": True, "dynamic": config.dynamic}


def compilations(run: Program) -> dict[str, float]:
    """Return ``{"compilations": n}`` for an executor with a counter, else an empty dictionary.

    Compilations of torch's compiler are counted with all compilations of the process.
    """
    thunder = sys.modules.get("thunder")
    if thunder is None or not isinstance(run, getattr(thunder, "ThunderModule", ())):
        return {}
    return {"compilations": float(thunder.cache_misses(run))}
