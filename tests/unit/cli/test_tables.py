"""Tables on a narrow terminal: columns are left out by importance, and no cell is cut."""

from __future__ import annotations

import sys

import pytest
from rich.table import Table
from rich.text import Text

from llmb.cli.tables import print_fitted
from llmb.workloads import WORKLOADS
from llmb.workloads.recipes import RECIPES


def printed(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    columns: int,
    *,
    wide: bool = False,
) -> list[str]:
    """Return the lines of a table with 44 columns of text, on a terminal of ``columns``."""
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    table = Table(box=None, padding=(0, 2, 0, 0))
    for title in ("name", "origin", "size"):
        table.add_column(title, no_wrap=True)
    table.add_row("n" * 20, "o" * 10, "s" * 8)
    print_fitted(table, ("size", "origin"), wide=wide, piped=160)
    text = Text.from_ansi(capsys.readouterr().out).plain
    return [line.rstrip() for line in text.splitlines()]


@pytest.mark.parametrize(
    ("columns", "left_out"), [(44, ""), (43, "size"), (34, "size"), (33, "size, origin")]
)
def test_the_least_important_columns_are_left_out_and_named(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    columns: int,
    left_out: str,
) -> None:
    lines = printed(capsys, monkeypatch, columns)
    assert lines[1].startswith("n" * 20)
    assert ("s" * 8 in lines[1]) is (left_out == "")
    assert ("o" * 10 in lines[1]) is ("origin" not in left_out)
    assert (f"left out for want of width: {left_out}" in " ".join(lines)) is bool(left_out)


def test_wide_shows_every_column_on_a_narrow_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert len(printed(capsys, monkeypatch, 30, wide=True)[1].split()) == 3


@pytest.mark.parametrize("command", ["list", "recipes"])
def test_no_name_is_cut_at_80_columns(
    command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from llmb.cli import workload

    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    workload.command.main([command], standalone_mode=False)
    output = Text.from_ansi(capsys.readouterr().out).plain
    names = {line.split()[0] for line in output.splitlines()}
    assert names >= {*(WORKLOADS if command == "list" else RECIPES)}
    assert "\u2026" not in output
    assert max(map(len, output.splitlines())) <= 80
