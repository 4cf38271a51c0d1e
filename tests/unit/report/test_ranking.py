"""The leaderboard as text: every bundle is in each form, and no word of it acts."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace

import pytest

from llmb.report import ranking
from llmb.report.board import Repetition, board
from llmb.report.bundles import gather
from tests.unit.builders_board import HOSTILE, put, record


def hostile(data):
    data["plugin"]["name"] = data["config"]["plugin"] = HOSTILE
    data["system"]["devices"][0]["description"] = "=cmd|'/c calc'!A1 \u202e[x](javascript:1)"


def debug(data):
    data["class"] = "debug"


@pytest.fixture
def found(tmp_path):
    put(tmp_path, record(1, faster=2.0))
    put(tmp_path, record(2, verdict="FLAGGED"))
    put(tmp_path, record(3, faster=9.0, change=debug))
    put(tmp_path, record(4, faster=0.25, change=hostile), "=Mallory", "| [box]")
    (put(tmp_path, record(5)) / "log.txt").write_text("edited")
    return board(gather([tmp_path]))


def test_markdown_ranks_marks_and_tells_what_is_left_out(found):
    lines = ranking.markdown(found).splitlines()
    rows = [line for line in lines if line.startswith(("| 1 ", "| 2 ", "| 3 "))]
    assert len(rows) == 3
    assert "FLAGGED (consistent, and a human should look), strict" in rows[1]
    assert any("not comparable" in line for line in lines)
    assert any(line.startswith("| Acme/box/work/00000005 |") for line in lines)


def test_nothing_acts_in_markdown(found):
    text = ranking.markdown(found)
    assert "<img" not in text.replace("\\<", "")
    assert "](" not in text.replace("\\]", "")
    assert "\u202e" not in text


def test_csv_has_a_line_for_each_bundle_and_no_formula(found):
    lines = list(csv.DictReader(io.StringIO(ranking.comma_separated(found))))
    kinds = [line["kind"] for line in lines if line["kind"] != "reference"]
    assert kinds == ["ranked"] * 3 + ["apart", "refused"]
    assert not any((value or "").startswith("=") for line in lines for value in line.values())
    assert float(lines[0]["tokens_per_second"]) > float(lines[1]["tokens_per_second"])
    assert all(line["rank"] == "" for line in lines if line["kind"] != "ranked")


def test_json_says_the_same(found):
    data = json.loads(json.dumps(ranking.as_data(found)))
    (group,) = data["groups"]
    assert [row["rank"] for row in group["rows"]] == [1, 2, 3]
    assert [row["unranked"] for row in data["apart"]] == ["debug: not comparable"]
    assert len(data["refused"]) == 1
    assert data["schema"] == "llmb.leaderboard/1"


def test_a_repetition_that_does_not_count_is_in_no_list(tmp_path):
    put(tmp_path, record())
    shelf = gather([tmp_path])
    repetitions = [Repetition("b" * 64, 1.5, ("the same key",)), Repetition("c" * 64, 1.5, ())]
    found = board(shelf, {shelf.entries[0].bundle_id: repetitions})
    (row,) = found.rows
    assert ranking.row_data(row)["repeated_by"] == ["c" * 64]
    (line,) = csv.DictReader(io.StringIO(ranking.comma_separated(replace(found, references=()))))
    assert line["repeated_by"] == "c" * 64


def test_every_form_is_the_same_every_time(found, tmp_path):
    again = board(gather([tmp_path]))
    assert ranking.markdown(found) == ranking.markdown(again)
    assert ranking.comma_separated(found) == ranking.comma_separated(again)
