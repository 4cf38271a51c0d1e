"""Runs as CSV, JSON and Parquet, read back; published rows are marked, strangers' words inert."""

from __future__ import annotations

import csv
import io
import json

import pytest

from llmb.comparison.figures import run_of
from llmb.report.exports import rows, tables
from llmb.workloads.published import documents
from tests import needs
from tests.builders import edited, make_record
from tests.unit.builders_times import noise, of_workload, record_of

HOSTILE = "=cmd|'/c calc'!A0\n\x1b[2J\u202e"


def hostile(data):
    data["plugin"] |= {"version": HOSTILE, "distribution": "\uff1d1+1"}
    data["system"]["torch"] = "-2+3"
    data["system"]["devices"][0]["description"] = "@SUM(A1)"


@pytest.fixture(scope="module")
def found():
    records = [make_record(3), edited(of_workload("litgpt-train"), hostile)]
    return [rows.run_row(run_of(record)) for record in records]


def read(text):
    return list(csv.DictReader(io.StringIO(text)))


def test_csv_has_a_row_a_run_and_its_figures_read_back_exactly(found) -> None:
    first, second = read(tables.as_csv(found))
    result = make_record(3).result
    assert float(first["tokens_per_second"]) == result.tokens_per_second
    assert float(first["tokens_per_second_low95"]) == result.ci95[0]
    assert float(first["tokens_per_second_high95"]) == result.ci95[1]
    assert int(first["peak_memory_bytes"]) == result.peak_memory_bytes
    assert float(first["step_time_p95_s"]) == result.step_time_s.p95
    assert (first["kind"], first["strict"], first["verdict"]) == ("measured", "true", "UNVERIFIED")
    assert (first["time_45_steps_s"], first["effective_precision"]) == ("", "")
    assert float(second["time_45_steps_s"]) > 0


def test_no_cell_of_a_strangers_is_computed_by_a_spreadsheet(found) -> None:
    second = read(tables.as_csv(found))[1]
    assert second["plugin_version"].startswith("'=cmd")
    assert second["plugin_distribution"].startswith("'\uff1d")
    assert second["torch"] == "'-2+3"
    assert second["hardware"] == "'@SUM(A1)"
    assert not {"\x1b", "\u202e"} & set(tables.as_csv(found))
    assert len(tables.as_csv(found).splitlines()) == 3


def test_json_has_the_same_rows_with_null_for_what_was_not_measured(found) -> None:
    data = json.loads(tables.as_json(found))
    assert data["schema"] == "llmb.export/1"
    first, second = data["rows"]
    assert first.keys() == second.keys()
    assert first["tokens_per_second"] == make_record(3).result.tokens_per_second
    assert first["time_45_steps_s"] is None
    assert second["plugin_version"] == HOSTILE, "JSON computes nothing: words are as they were"


def test_steps_have_a_row_each_with_times_only_where_stamps_mean_something() -> None:
    times = noise(20, seed=1)
    found = list(rows.step_rows(record_of(times, times)))
    assert len(found) == 2 * 22
    timed = [row for row in found if row["timed"] and row["repeat"] == 0]
    assert [row["step_time_s"] for row in timed] == pytest.approx(times, abs=1e-8)
    assert found[0]["step_time_s"] is None
    assert [row["step"] for row in found if row["fence_ns"]] == [1, 11, 21] * 2
    enqueued = list(rows.step_rows(record_of(times, clock="enqueue")))
    assert {row["step_time_s"] for row in enqueued} == {None}
    assert {row["step_clock"] for row in enqueued} == {"enqueue"}


def test_published_rows_are_all_there_marked_with_their_source() -> None:
    found = list(rows.published_rows(None))
    every = [row for one in documents().values() for table in one.tables for row in table.rows]
    assert len(found) == len(every)
    assert {row["kind"] for row in found} == {"published"}
    assert {row["source"] for row in found} == {one.source for one in documents().values()}
    assert all(row["workload"] for row in found)


def test_published_rows_stand_in_the_columns_of_what_was_measured(found) -> None:
    published = list(rows.published_rows({"litgpt-train"}))
    lines = read(tables.as_csv([*found, *published]))
    assert [line["kind"] for line in lines[:2]] == ["measured"] * 2
    (eager,) = (
        line
        for line in lines
        if line["row"] == "Eager" and line["dynamic"] == "false" and line["world_size"] == "1"
    )
    assert float(eager["time_45_steps_s"]) == 24.6
    assert eager["hardware"] == "NVIDIA A100-SXM4-40GB"
    assert eager["source"].startswith("Lightning-AI/lightning-thunder")
    assert eager["run_id"] == ""


def test_parquet_reads_back_to_the_same_rows(found) -> None:
    parquet = needs.module("pyarrow.parquet")
    every = [*found, *rows.published_rows(None)]
    table = parquet.read_table(io.BytesIO(tables.as_parquet(every)))
    assert table.num_rows == len(every)
    back = table.to_pylist()
    for name in ("tokens_per_second", "run_id", "strict", "kind", "batch_size"):
        assert [row[name] for row in back] == [row.get(name) for row in every]


def test_parquet_takes_mixed_columns_and_numbers_that_it_has_no_type_for() -> None:
    parquet = needs.module("pyarrow.parquet")
    odd = [{"a": 1, "b": 1, "c": 2**70, "d": None}, {"a": 1.5, "b": "x", "c": 1, "d": None}]
    back = parquet.read_table(io.BytesIO(tables.as_parquet(odd))).to_pylist()
    assert back == [
        {"a": 1.0, "b": "1", "c": 2.0**70, "d": None},
        {"a": 1.5, "b": "x", "c": 1.0, "d": None},
    ]


def test_nothing_makes_an_empty_table() -> None:
    assert tables.as_csv([]) == "\n"
    assert json.loads(tables.as_json([]))["rows"] == []


def test_a_column_of_mixtures_is_text_and_keeps_what_is_missing() -> None:
    assert tables._uniform(["a", 1, None]) == ["a", "1", None]
    assert tables._uniform([1, 0.5, None]) == [1.0, 0.5, None]
