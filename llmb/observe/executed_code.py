"""Record all code this process runs after ``listen``, and compare the code with its source files.

A Python audit hook (PEP 578) records code as Python runs the code. An audit hook cannot be removed.
"""

from __future__ import annotations

import functools
import os
import re
import struct
import sys
from _imp import get_frozen_object  # bound before any code of a plugin runs
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from types import CodeType
from typing import Any

_MODULE = "<module>"
_FROZEN = re.compile(r"<frozen ([\w.]+)>")


def listen() -> Callable[[], tuple[CodeType, ...]]:
    """Listen to Python; return a function that gives the code run since then, in order.

    Equal code objects of one file are kept once. The child processes of llmb listen before the
    processes import torch or any other module of llmb.
    """
    return _listening()[1]


def keep_from_compilers(*others: CodeType) -> None:
    """Keep torch's compiler from tracing the audit hook, and ``others`` that listen, too."""
    with suppress(Exception):  # a torch version without ``skip_code``
        from torch._dynamo.eval_frame import skip_code

        for code in (_listening()[0], *others):
            skip_code(code)


@functools.cache  # a hook can never be removed: add a single hook per process
def _listening() -> tuple[CodeType, Callable[[], tuple[CodeType, ...]]]:
    heard: dict[tuple[str, CodeType], None] = {}

    def hear(event: str, arguments: tuple[Any, ...]) -> None:
        if event != "exec":
            return
        try:
            heard.setdefault((arguments[0].co_filename, arguments[0]))
        except Exception:  # an exception would abort the code that is about to run
            return

    sys.addaudithook(hear)
    return hear.__code__, lambda: tuple(code for _, code in heard)


def other_than_shown(files: Iterable[Path]) -> Iterator[Path]:
    """Yield the ``files`` that ran other code than the source text compiles to.

    Example: Python runs stale byte code from ``__pycache__``, or a file is replaced on disk after
    Python read the file. A file that ran before ``listen`` is yielded, too: no code is recorded.
    """
    run = _run_by_file()
    for file in files:
        ran = run.get(str(file.resolve()))
        if not ran or not _is_shown(file, ran):
            yield file


def other_than_own(folder: Path) -> Iterator[Path]:
    """Yield the Python files below ``folder`` that ran other code than the file compiles to.

    0.1 s for the 150 files of llmb in a worker. Files that ran before ``listen`` are not known.
    """
    inside = f"{folder.resolve()}{os.sep}"
    for name, ran in _run_by_file().items():
        if name.startswith(inside) and name.endswith(".py") and not _is_shown(Path(name), ran):
            yield Path(name)


def _run_by_file() -> dict[str, list[CodeType]]:
    """Return the code of modules that ran, by the real path of the file."""
    run: dict[str, list[CodeType]] = {}
    folder_of = functools.cache(os.path.realpath)  # two thousand files lie in a hundred folders
    place_of = functools.cache(functools.partial(_resolved, folder_of))  # half are "<string>"
    for code in listen()():
        if code.co_name == _MODULE:
            run.setdefault(place_of(code.co_filename), []).append(code)
    return run


def _is_shown(file: Path, ran: Iterable[CodeType]) -> bool:
    shown = compiled(file)
    return shown is not None and all(is_same(code, shown) for code in ran)


def is_same(one: CodeType, other: CodeType) -> bool:
    """Tell whether two code objects are equal, a constant NaN being equal to a NaN of its bits.

    Python's comparison heeds the type of each constant and the sign of a zero, but finds a NaN
    unequal to every other. Example: ``1e999 - 1e999``, which Python computes when it compiles.
    """
    nans = dict[tuple[type, bytes], object]()
    return one == other or _with_nans(one, nans) == _with_nans(other, nans)


def parts_of(code: CodeType) -> Iterator[CodeType]:
    """Yield ``code``, and the code of all functions and classes inside."""
    yield code
    for constant in code.co_consts:
        if type(constant) is CodeType:
            yield from parts_of(constant)


def _with_nans(value: Any, nans: dict[tuple[type, bytes], object]) -> Any:
    """Return ``value`` with the object of ``nans`` for each NaN: identical objects are equal.

    Exact types alone are rebuilt: a subclass of ``tuple`` could show other items than it holds.
    """
    kind = type(value)
    if kind is CodeType:
        return value.replace(co_consts=_with_nans(value.co_consts, nans))
    inside = (_with_nans(item, nans) for item in value) if kind in (tuple, frozenset) else ()
    if kind is tuple:
        return tuple(inside)
    if kind is frozenset:  # counted: two NaN become one
        return frozenset(Counter(inside).items())
    if kind in (float, complex) and value != value:
        bits = struct.pack("2d", value.real, value.imag)
        return nans.setdefault((kind, bits), value)
    return value


def _resolved(folder_of: Callable[[str], str], file: str) -> str:
    """Return the real path of ``file``; ``folder_of`` gives the real path of a folder."""
    if not os.path.isabs(file) or os.path.islink(file):
        return os.path.realpath(file)
    folder, name = os.path.split(file)
    return os.path.join(folder_of(folder), name)


def compiled(file: Path) -> CodeType | None:
    """Return the code ``file`` compiles to; None if ``file`` cannot be read or compiled.

    Modules that are part of Python's own program have names such as ``<frozen abc>``.
    """
    frozen = _FROZEN.fullmatch(str(file))
    if frozen is not None:
        try:
            code: CodeType = get_frozen_object(frozen[1])
        except ImportError:  # no such module
            return None
        return code
    try:
        return compile(file.read_bytes(), str(file), "exec", dont_inherit=True)
    except (OSError, SyntaxError, ValueError):
        return None
