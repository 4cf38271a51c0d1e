"""Faults of a plugin itself, as opposed to parts that are missing on this machine."""

from __future__ import annotations

import difflib
import re
from types import ModuleType

import pluggy

from llmb.errors import UnavailableError

_UNKNOWN_HOOK = re.compile(r"unknown hook '(\w+)'")
_UNKNOWN_ARGUMENTS = re.compile(r"definition: (\w+)\(.*?\)\s+Argument\(s\) {(.*?)}", re.DOTALL)


class PluginFaultError(UnavailableError):
    """The plugin cannot be loaded, or a hook or the backend breaks the plugin interface."""


def told(error: BaseException) -> str:
    """Return the class of ``error``, and the message if ``error`` has one."""
    return f"{type(error).__name__}: {error}".removesuffix(": ")


def load_fault(error: BaseException, hookspecs: ModuleType) -> str:
    """Return in one line why a plugin cannot be loaded, with a remedy if the error shows one."""
    text = told(error)
    if isinstance(error, pluggy.PluginValidationError):
        return _hook_fault(str(error), hookspecs) or text
    if isinstance(error, ModuleNotFoundError) and error.name is not None:
        return f"{text}; install the package that provides {error.name.partition('.')[0]!r}"
    return text


def _hook_fault(message: str, hookspecs: ModuleType) -> str | None:
    specs = [name for name in vars(hookspecs) if name.startswith("llmb_")]
    if found := _UNKNOWN_HOOK.search(message):
        near = difflib.get_close_matches(found[1], specs, n=1, cutoff=0.8)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(specs)}"
        return f"there is no hook {found[1]!r}; {hint}"
    if found := _UNKNOWN_ARGUMENTS.search(message):
        code = getattr(hookspecs, found[1]).__code__
        taken = ", ".join(code.co_varnames[: code.co_argcount]) or "no argument"
        return f"hook {found[1]} has no argument {found[2]}; it may take {taken}"
    return None


def members_missing(value: object, expected: type) -> str:
    """Return the members of a Protocol that ``value`` lacks; "" for any other class."""
    if not getattr(expected, "_is_protocol", False):
        return ""
    names = (*expected.__annotations__, *(n for n in vars(expected) if not n.startswith("_")))
    missing = [name for name in names if not hasattr(value, name)]
    return f" (it lacks {', '.join(missing)})" if missing else ""
