"""The line that a finished run adds, and a history that costs no run."""

from __future__ import annotations

import os

from llmb.cli.remember import remember
from llmb.history import file
from tests.builders import make_record

RECORD = make_record(1)


def test_a_finished_run_adds_a_line_beside_its_directory(tmp_path) -> None:
    remember(tmp_path / "the-run", RECORD, "debug")
    (line,) = file.read(tmp_path / file.FILE).lines
    assert (line.run, line.run_id, line.preset) == ("the-run", RECORD.run_id, "debug")


def test_no_fault_of_the_history_costs_the_run(tmp_path, capsys, monkeypatch) -> None:
    (tmp_path / file.FILE).mkdir()
    remember(tmp_path / "a", RECORD)
    os.rmdir(tmp_path / file.FILE)
    os.mkfifo(tmp_path / file.FILE)
    remember(tmp_path / "b", RECORD)
    monkeypatch.setattr(file, "append", lambda *_: [][1])
    remember(tmp_path / "\x1b[2J", RECORD)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 3
    assert all("has no line of this run (" in line for line in lines)
    assert all("llmb history add" in line and line.isprintable() for line in lines)
