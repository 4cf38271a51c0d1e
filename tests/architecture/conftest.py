"""The sources of llmb, parsed once, as every architecture test reads them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pytest

import llmb

PACKAGE = Path(llmb.__file__).resolve().parent


@dataclass(frozen=True)
class Source:
    """One module of llmb: its name relative to the package, its text and its tree."""

    name: str
    text: str

    @cached_property
    def tree(self) -> ast.Module:
        """The parsed module."""
        return ast.parse(self.text)

    def definitions(self) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef]:
        """Yield every function, method and class."""
        kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
        return (node for node in ast.walk(self.tree) if isinstance(node, kinds))


@pytest.fixture(scope="session")
def sources() -> list[Source]:
    found = [
        Source(path.relative_to(PACKAGE).as_posix(), path.read_text(encoding="utf-8"))
        for path in sorted(PACKAGE.rglob("*.py"))
    ]
    assert len(found) > 50
    return found
