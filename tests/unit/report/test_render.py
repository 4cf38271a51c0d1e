"""The same table as Markdown, as CSV and as data; words of a stranger's record act in none."""

from __future__ import annotations

import csv
import io

import pytest

from llmb.report import render
from llmb.report.document import report
from llmb.submission.runs import run_of
from llmb.workloads.published import documents
from tests.builders import edited
from tests.unit.builders_workloads import of_workload

HOSTILE = "=cmd|'/c calc'!A0\n| evil | <script>[x](https://e.vil) www.e.vil `\x1b[2J\u202e"


def hostile(data):
    data["config"]["plugin_options"] = data["plugin"]["options"] = {}
    data["system"]["devices"][0]["description"] = HOSTILE


@pytest.fixture(scope="module")
def found():
    run = run_of(edited(of_workload("litgpt-forward", batch_size=10), hostile))
    run = run_of(
        edited(run.record, lambda data: data["config"].update(mixed_precision=False)),
    )
    return report("litgpt", documents()["litgpt"], [run], debug=False)


def test_markdown_has_every_published_figure_beside_what_was_measured(found) -> None:
    lines = render.markdown(found).splitlines()
    assert lines[0] == "# Lit-GPT benchmarks"
    assert "NVIDIA A100-SXM4-40GB" in lines[2]
    header = "| Method | Time (s) | measured | Memory (GB) | measured | measured on |"
    at = lines.index(header)
    assert lines[at + 1] == "| --- | --- | --- | --- | --- | --- |"
    assert lines[at + 2] == "| Inductor | 1.18 | not measured | 17.3 | not measured |  |"
    assert lines[at + 4].startswith("| Eager | 1.48 | 0.1")
    assert "BF16, batch 10, UNVERIFIED" in lines[at + 4]


def test_every_row_of_markdown_has_as_many_cells_as_its_header(found) -> None:
    import re

    counts = []
    for line in render.markdown(found).splitlines():
        if line.startswith("|"):
            counts.append(len(re.findall(r"(?<!\\)\|", line)))
        else:
            assert len(set(counts)) <= 1
            counts = []


def test_a_strangers_words_are_neither_markup_nor_links_nor_breaks(found) -> None:
    text = render.markdown(found)
    assert "\\<script\\>\\[x\\](https:\\//e.vil) www\\.e.vil \\`" in text
    assert "\\x1b" in text
    assert not {"\x1b", "\u202e"} & set(text)


def test_csv_has_a_line_a_figure_and_no_cell_that_a_spreadsheet_computes(found) -> None:
    lines = list(csv.DictReader(io.StringIO(render.comma_separated([("litgpt", found)]))))
    published = [line for line in lines if line["published"]]
    tables = documents()["litgpt"].tables
    assert len(published) == sum(len(row.values) for table in tables for row in table.rows)
    (eager,) = (line for line in lines if line["column"] == "best_s" and line["row"] == "Eager")
    assert float(eager["measured"]) > 0
    assert eager["measured_on"].startswith("'=cmd")
    assert (eager["published_on"], eager["class"]) == ("NVIDIA A100-SXM4-40GB", "official")
    assert lines[0]["measured"] == ""


def test_data_has_null_where_nothing_was_measured(found) -> None:
    data = render.as_data("litgpt", found)
    first = data["tables"][0]["rows"]
    assert first[0]["published"] == {"best_s": 1.18, "peak_memory_gb": 17.3}
    assert first[0]["measured"] == {"best_s": None, "peak_memory_gb": None}
    assert first[2]["labels"] == {"Method": "Eager"}
    assert (first[2]["runs"], first[2]["world_size"]) == (1, 1)


def test_a_figure_has_four_digits_and_is_whole_from_a_thousand_on() -> None:
    assert [render.number(v) for v in (0.0123456, 12.3456, 1234.56, 597333.4, 8.98e15)] == [
        "0.01235",
        "12.35",
        "1,235",
        "597,333",
        "8.98e+15",
    ]


def test_a_word_without_an_end_is_cut() -> None:
    assert len(render.escaped("x" * 100_000)) < 500


def test_text_that_goes_on_and_on_is_cut_at_400_characters() -> None:
    assert render.plain("x" * 400) == "x" * 400
    assert render.plain("x" * 401) == "x" * 397 + "..."


@pytest.mark.parametrize("begins", ["=", "+", "-", "@", "\uff1d", "\uff0b", "\uff0d", "\uff20"])
def test_no_cell_begins_as_a_formula_does(begins: str) -> None:
    assert str(render.inert(f"{begins}SUM(A1)")).startswith("'")
    assert render.inert(f"a{begins}b") == f"a{begins}b"
    for blanks in ("", " ", "  "):
        assert render.inert(f"a;{blanks}{begins}b") == f"a;'{blanks}{begins}b"
        assert render.inert(f"{blanks}{begins}b;{begins}c") == f"'{blanks}{begins}b;'{begins}c"
    for broken in ("\t", "\n", "\r", "\u2028"):
        cell = str(render.inert(f"a{broken}{begins}b"))
        assert cell.isprintable(), "a break is shown as an escape, and begins no cell"
        assert str(render.inert(f"{broken}{begins}b")).startswith("\\")
    assert render.inert(-5.0) == -5.0, "a number is none"
