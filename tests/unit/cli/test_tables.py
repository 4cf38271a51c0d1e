"""Tables on a narrow terminal: columns are left out by importance, and no cell is cut."""

from __future__ import annotations

import sys

import pytest
from rich.table import Table
from rich.text import Text

from llmb import cli
from llmb.cli.tables import print_fitted, print_row
from llmb.workloads import WORKLOADS
from llmb.workloads.recipes import RECIPES
from tests import committed


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


BASE, OTHER = str(committed.OF_0_1_0), str(next(iter(committed.bundles()), ""))
#: Commands with a table that folds or leaves out columns, and a word that only --wide shows.
FITTED = {
    ("compare", BASE, OTHER): "95 % interval",
    ("report", "--like", "llm-train-bench", BASE): "measured",
    ("audit", BASE, "--rule", "S1"): "",
    ("workload", "list"): "document",
}


@pytest.mark.parametrize("words", FITTED, ids=lambda words: words[0])
def test_a_command_fits_80_columns_and_wide_shows_all(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def output(*more: str) -> str:
        cli.llmb.main([*words, *more], standalone_mode=False)
        return Text.from_ansi(capsys.readouterr().out).plain

    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    narrow, wide = output(), output("--wide")
    tables = [line for line in narrow.splitlines() if BASE not in line and OTHER not in line]
    assert max(map(len, tables)) <= 80
    assert "\u2026" not in narrow + wide
    assert FITTED[words] in wide


@pytest.mark.parametrize("wide", [True, False])
def test_a_row_is_folded_at_words_on_a_terminal_and_whole_with_wide(
    wide: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    print_row(Text("  option"), "a sentence of several words that is longer", wide=wide, indent=10)
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    whole = "  option  a sentence of several words that is longer"
    folded = ["  option  a sentence of several words", "          that is longer"]
    assert lines == ([whole] if wide else folded)
