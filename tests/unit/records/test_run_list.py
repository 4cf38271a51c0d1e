"""One line per run directory: honest figures, and a note for everything that is no record."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import pytest

from llmb.measure import statistics
from llmb.records import run_list
from llmb.records.canonical import pretty_bytes
from llmb.records.finding import Verdict
from llmb.records.run_list import line_of
from llmb.records.run_names import runs_in
from llmb.records.run_record import RunClass
from tests.builders import make_record

NAME = "20261121T120000Z-llama-1.4b-BF16-fast"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / NAME).mkdir()
    return tmp_path / NAME


def test_a_finished_run_shows_the_figures_of_its_record(folder: Path) -> None:
    record = make_record()
    (folder / "record.json").write_bytes(pretty_bytes(record))
    line = line_of(runs_in(folder.parent)[0])
    assert (line.name, line.workload, line.mode, line.note) == (NAME, "llama-1.4b", "train", None)
    assert (line.precision, line.plugin, line.device) == ("BF16", "fast", "fast:0")
    assert (line.tokens_per_second, line.ci95) == (
        record.result.tokens_per_second,
        record.result.ci95,
    )
    assert (line.run_class, line.verdict) == ("official", record.audit.verdict.value)


def test_every_class_and_verdict_of_a_record_is_known(folder: Path) -> None:
    assert (get_args(RunClass), tuple(Verdict)) == (run_list.CLASSES, run_list.VERDICTS)
    record = make_record()
    for verdict in Verdict:
        audit = record.audit.model_copy(update={"verdict": verdict})
        made = record.model_copy(update={"audit": audit})
        (folder / "record.json").write_bytes(pretty_bytes(made))
        line = line_of(runs_in(folder.parent)[0])
        assert (line.verdict, line.note) == (verdict.value, None)


def test_an_interval_of_two_fence_blocks_is_not_shown(folder: Path) -> None:
    record = make_record()
    one = record.timing.repeats[0]
    for fences in (one.fence_steps, one.fence_steps[:3]):
        timing = one.model_copy(
            update={"fence_steps": fences, "fence_ns": one.fence_ns[: len(fences)]}
        )
        made = record.model_copy(
            update={"timing": record.timing.model_copy(update={"repeats": (timing,)})}
        )
        (folder / "record.json").write_bytes(pretty_bytes(made))
        line = line_of(runs_in(folder.parent)[0])
        assert line.interval_values == statistics.interval_values((timing,))
        shown = line.interval_values >= statistics.LEAST_SHOWN
        assert line.shown_ci95 == (record.result.ci95 if shown else None)
    assert not shown


def changed(change: Callable[[dict[str, Any]], Any]) -> bytes:
    data = json.loads(pretty_bytes(make_record()))
    change(data)
    return json.dumps(data).encode()


@pytest.mark.parametrize(
    ("raw", "note"),
    [
        (b"", "damaged: record.json: EOF"),
        (b"[" * 200_000, "damaged: record.json: recursion limit"),
        (b"[]", "damaged: record.json: no "),
        (b'"' + b"x" * (9 << 20) + b'"', "not read: "),
        (changed(lambda data: data["result"].update(tokens_per_second=10**400)), "damaged: "),
        (changed(lambda data: data["result"].update(ci95=[1])), "damaged: record.json: result.ci"),
        (changed(lambda data: data["audit"].update(verdict="\x1b[2JGOOD")), "damaged: "),
        (changed(lambda data: data.update(created_utc="yesterday")), "damaged: "),
        (changed(lambda data: data.pop("workload")), "damaged: record.json: no workload.name"),
    ],
    ids=["empty", "deep", "list", "huge", "number", "interval", "verdict", "time", "missing"],
)
def test_a_damaged_record_is_a_note(folder: Path, raw: bytes, note: str) -> None:
    (folder / "record.json").write_bytes(raw)
    line = line_of(runs_in(folder.parent)[0])
    assert (line.note or "").startswith(note)
    assert (line.created_utc, line.verdict) == ("2026-11-21T12:00:00Z", None)


def test_a_run_without_a_record_gives_the_reason_in_its_log(folder: Path) -> None:
    run = runs_in(folder.parent)[0]
    assert line_of(run).note == "no record: the run goes on, or was killed"
    (folder / "log.txt").write_text("x" * 9000 + "\nthe run did not finish: out of memory\n")
    assert line_of(run).note == "no result: out of memory"
    os.mkfifo(folder / "record.json")
    assert line_of(runs_in(folder.parent)[0]).state == "not read"
