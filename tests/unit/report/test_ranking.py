"""The leaderboard as text: every bundle is in each form, and no word of it acts."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace

import pytest

from llmb.report import columns, ranking
from llmb.report.board import BoardRepetition, board
from tests.unit.builders_board import HOSTILE, believing, index, put, record


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
    return board(believing([tmp_path]))


def test_markdown_ranks_marks_and_tells_what_is_left_out(found):
    lines = ranking.markdown(found).splitlines()
    rows = [line for line in lines if line.startswith(("| 1 ", "| 2 ", "| 3 "))]
    assert len(rows) == 3
    assert "FLAGGED (consistent, and a human should look), strict" in rows[1]
    assert any("not comparable" in line for line in lines)
    assert any(line.startswith("| acme/box/work/00000005 |") for line in lines)


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
    shelf = believing([tmp_path])
    repetitions = [
        BoardRepetition("b" * 64, 1.5, ("the same key",)),
        BoardRepetition("c" * 64, 1.5, ()),
    ]
    found = board(shelf, {shelf.entries[0].bundle_id: repetitions})
    (row,) = found.rows
    assert columns.row_data(row)["repeated_by"] == ["c" * 64]
    (line,) = csv.DictReader(io.StringIO(ranking.comma_separated(replace(found, references=()))))
    assert line["repeated_by"] == "c" * 64


def test_every_form_is_the_same_every_time(found, tmp_path):
    again = board(believing([tmp_path]))
    assert ranking.markdown(found) == ranking.markdown(again)
    assert ranking.comma_separated(found) == ranking.comma_separated(again)


def of_row(row):
    """Return what a row says under each name, written out once more."""
    record = row.entry.record
    result, config, timing = record.result, record.config, record.timing
    figures = {
        "tokens_per_second": result.tokens_per_second,
        "ci95": list(result.ci95),
        "tokens_per_second_per_device": result.tokens_per_second_per_device,
        "tokens_per_joule": result.energy.tokens_per_joule,
        "energy_source": f"{result.energy.source}, {result.energy.scope}",
        "fraction_of_ceiling": result.fraction_of_ceiling,
        "mfu": result.mfu.value,
        "mfu_source": result.mfu.peak_source,
        "measured_precision": None,
        "measured_lowest": None,
        "measured_largest": None,
        "batch_size": config.batch_size,
        "window_s": (timing.stop_ns - timing.start_ns) / 1e9,
    }
    return figures | {
        "workload": record.workload.name,
        "mode": record.workload.mode,
        "precision": record.precision.effective,
        "verdict": record.audit.verdict.value,
        "trust": "self-reported",
        "trusted_because": "nobody else has computed it again",
        "tokens_per_second_by_foreign_clock": None,
        "class": record.class_,
        "strict": record.plugin.strict,
        "plugin": record.plugin.name,
        "plugin_version": record.plugin.version,
        "devices": record.topology.world_size,
        "executor": "inductor",
        "created_utc": record.created_utc,
        "submitter": "acme",
        "system": "box",
        "organisation": None,
        "availability": "preview",
        "signatures": 0,
        "marks": [],
        "repeated_by": [],
        "repeated_by_same_organisation": [],
        "unranked": None,
        "rank": 1,
        "overlaps_above": False,
        "path": row.entry.path,
        "bundle_id": row.entry.bundle_id,
        "device": "Fast [1]",
    }


@pytest.fixture
def one(tmp_path):
    put(tmp_path, record())
    index(tmp_path, availability="preview")
    return board(believing([tmp_path]))


def test_every_name_of_a_row_has_the_records_own_value(one):
    (row,) = one.rows
    assert columns.row_data(row) == of_row(row)


def test_a_line_of_csv_has_every_name_and_the_same_values(one):
    (row,) = one.rows
    (line,) = csv.DictReader(io.StringIO(ranking.comma_separated(replace(one, references=()))))
    right = of_row(row) | {"kind": "ranked", "reason": None, "marks": None}
    right |= {"repeated_by": None, "repeated_by_same_organisation": None}
    right["ci95_low"], right["ci95_high"] = right.pop("ci95")
    right["rank"], _ = 1, right.pop("unranked")
    assert line == {name: "" if value is None else str(value) for name, value in right.items()}


def test_a_row_of_markdown_says_each_figure_in_its_column(one):
    lines = ranking.markdown(one).splitlines()
    titles, cells = (
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in lines
        if line.startswith(("| # ", "| 1 "))
    )
    (row,) = one.rows
    said = dict(zip(titles, cells, strict=True))
    assert said["#"] == "1"
    assert (said["System (declared)"], said["Device (declared)"]) == (
        "acme / box",
        "1 x Fast \\[1\\]",
    )
    assert said["Of ceiling"] == f"{row.fraction_of_ceiling:.1%}"
    assert said["MFU"] == f"{row.mfu:.1%} (datasheet)"
    assert said["Verdict"] == "CONSISTENT, strict"
    assert (said["Plugin (declared)"], said["Bundle"]) == ("fast 1.0", row.bundle_id[:12])
    assert said["Date (declared)"] == row.created_utc[:10]


def test_published_rows_are_lines_of_their_own_in_csv_and_json(one):
    (first, *_) = one.references
    lines = csv.DictReader(io.StringIO(ranking.comma_separated(replace(one, references=(first,)))))
    (line,) = (each for each in lines if each["kind"] == "reference")
    assert (line["workload"], line["device"]) == (first.workload, first.hardware)
    assert (line["path"], line["reason"]) == (first.source, f"published: {first.row}")
    (data,) = ranking.as_data(replace(one, references=(first,)))["references"]
    assert data == {
        "workload": first.workload,
        "document": first.document,
        "source": first.source,
        "hardware": first.hardware,
        "row": first.row,
        "figures": dict(first.figures),
    }
