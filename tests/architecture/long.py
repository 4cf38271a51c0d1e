"""Prints the longest files and functions: ``python -m tests.architecture.long [COUNT]``.

A look, not a gate: a module of 120 lines and a function of 8 are typical, 400 and 60 are a reason
to split.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[2]


def lengths(name: str, text: str) -> tuple[tuple[int, str], list[tuple[int, str]]]:
    """Return the lines of the file ``name``, and of each function in it, with their names."""
    functions = [
        (node.end_lineno - node.lineno + 1, f"{name}:{node.lineno} {node.name}")
        for node in ast.walk(ast.parse(text))
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.end_lineno
    ]
    return (text.count("\n"), name), functions


def longest(paths: Iterable[Path], count: int) -> str:
    """Return the ``count`` longest files and functions of ``paths``, one a line."""
    every = [lengths(str(p.relative_to(_ROOT)), p.read_text(encoding="utf-8")) for p in paths]
    files = [file for file, _ in every]
    functions = [function for _, each in every for function in each]
    found = [
        f"{title}\n" + "".join(f"{n:6} {name}\n" for n, name in sorted(each, reverse=True)[:count])
        for title, each in (("lines of files", files), ("lines of functions", functions))
    ]
    return "\n".join(found)


if __name__ == "__main__":
    print(longest(_ROOT.glob("llmb/**/*.py"), int(sys.argv[1]) if sys.argv[1:] else 15), end="")
