"""Which code this process has run since llmb listens, and whether it is that of its files.

Code is heard of as it is run, by an audit hook of Python's (PEP 578), which nobody can take away
again.
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
    """Listen to Python; return what gives the code that was run since, in order.

    Of the code of one file each different piece is there once. llmb's children listen before they
    import anything else of llmb, and torch.
    """
    return _listening()[1]


def keep_from_compilers(*others: CodeType) -> None:
    """Keep torch's compiler from looking into what listens, and into ``others`` that do."""
    with suppress(Exception):  # a torch whose compiler would not
        from torch._dynamo.eval_frame import skip_code

        for code in (_listening()[0], *others):
            skip_code(code)


@functools.cache  # a hook stays for ever: one is enough for a process
def _listening() -> tuple[CodeType, Callable[[], tuple[CodeType, ...]]]:
    heard: dict[tuple[str, CodeType], None] = {}

    def hear(event: str, arguments: tuple[Any, ...]) -> None:
        if event != "exec":
            return
        try:
            heard.setdefault((arguments[0].co_filename, arguments[0]))
        except Exception:  # it would stop what was heard of
            return

    sys.addaudithook(hear)
    return hear.__code__, lambda: tuple(code for _, code in heard)


def other_than_shown(files: Iterable[Path]) -> Iterator[Path]:
    """Yield those of ``files`` whose code, as it was run, is not what their text compiles to.

    Python runs byte code that it keeps beside a file; a file may also be exchanged once it has been
    read. One that was run before anybody listened cannot be told from either.
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
    """Return where ``file`` lies, as ``folder_of`` gives where its folder does."""
    if not os.path.isabs(file) or os.path.islink(file):
        return os.path.realpath(file)
    folder, name = os.path.split(file)
    return os.path.join(folder_of(folder), name)


def compiled(file: Path) -> CodeType | None:
    """Return what the text of ``file`` compiles to; None where it cannot be read or compiled."""
    try:
        return compile(file.read_bytes(), str(file), "exec", dont_inherit=True)
    except (OSError, SyntaxError, ValueError):
        return None
