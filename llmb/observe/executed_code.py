"""Record all code this process runs after ``listen``, and compare the code with its source files.

A Python audit hook (PEP 578) records code as Python runs the code. An audit hook cannot be removed.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from types import CodeType
from typing import Any

_MODULE = "<module>"


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
    run: dict[str, list[CodeType]] = {}
    folder_of = functools.cache(os.path.realpath)  # two thousand files lie in a hundred folders
    place_of = functools.cache(functools.partial(_resolved, folder_of))  # half are "<string>"
    for code in listen()():
        if code.co_name == _MODULE:
            run.setdefault(place_of(code.co_filename), []).append(code)
    for file in files:
        shown = compiled(file)
        if shown is None or any(code != shown for code in run.get(str(file.resolve()), [None])):
            yield file


def _resolved(folder_of: Callable[[str], str], file: str) -> str:
    """Return the real path of ``file``; ``folder_of`` gives the real path of a folder."""
    if not os.path.isabs(file) or os.path.islink(file):
        return os.path.realpath(file)
    folder, name = os.path.split(file)
    return os.path.join(folder_of(folder), name)


def compiled(file: Path) -> CodeType | None:
    """Return the code ``file`` compiles to; None if ``file`` cannot be read or compiled."""
    try:
        return compile(file.read_bytes(), str(file), "exec", dont_inherit=True)
    except (OSError, SyntaxError, ValueError):
        return None
