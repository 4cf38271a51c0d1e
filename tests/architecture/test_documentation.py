"""What a user can meet is written down: every exit code, error class and rule."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from llmb import errors
from llmb.audit.rules import RULES

ROOT = Path(__file__).resolve().parents[2]
ERRORS = sorted(
    name
    for name, kind in vars(errors).items()
    if isinstance(kind, type) and issubclass(kind, errors.LlmbError)
)
CODES = sorted(
    {getattr(errors, name).exit_code for name in ERRORS} | {0, errors.INTERRUPTED_EXIT_CODE}
)


@pytest.fixture(scope="module")
def documentation() -> str:
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return "\n".join(page.read_text(encoding="utf-8") for page in pages)


@pytest.mark.parametrize("name", ERRORS)
def test_every_class_of_error_is_documented(documentation: str, name: str) -> None:
    assert re.search(rf"\b{name}\b", documentation)


@pytest.mark.parametrize("code", CODES)
def test_every_exit_code_is_documented_with_what_it_means(documentation: str, code: int) -> None:
    # A row of the table of exit codes: the number first, what it means last.
    assert re.search(rf"^\| *`?{code}`? *\|.*\| *\w[^|]+\|$", documentation, re.MULTILINE)


@pytest.mark.parametrize("rule", [rule.id for rule in RULES])
def test_every_rule_of_the_audit_is_documented(documentation: str, rule: str) -> None:
    assert re.search(rf"\b{rule}\b", documentation)
