"""``tests/parts.py``: parts are run to their end, and the table says what was tested."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests import parts
from tests.parts import Part, Progress, Row, rows_of, run, run_all, table

JUNIT = """<?xml version="1.0" encoding="utf-8"?>
<testsuites><testsuite name="pytest">
<testcase classname="tests.unit.audit.test_loss" name="test_a" time="1.5"/>
<testcase classname="tests.unit.audit.test_loss" name="test_b" time="0.5">
  <skipped type="pytest.skip" message="no C compiler"/></testcase>
<testcase classname="tests.unit.audit.test_loss" name="test_c" time="0">
  <skipped type="pytest.skip" message="no C compiler"/></testcase>
<testcase classname="tests.cheats.test_cheats" name="test_d" time="9">
  <skipped type="pytest.xfail" message="nothing sees it"/></testcase>
<testcase classname="tests.cheats.test_cheats" name="test_e" time="9">
  <failure message="caught"/></testcase>
<testcase classname="plugins.llmb-xla.tests.test_runs" name="test_f" time="2"/>
</testsuite></testsuites>"""


@pytest.fixture
def junit(tmp_path: Path) -> Path:
    path = tmp_path / "junit.xml"
    path.write_text(JUNIT)
    return path


@pytest.fixture
def progress() -> Progress:
    return Progress()


def python(code: str) -> parts.Command:
    return (sys.executable, "-c", code)


def test_each_folder_of_tests_is_a_row_with_its_counts_and_seconds(junit: Path) -> None:
    rows = {
        row.part: (row.passed, row.skipped, row.failed, row.seconds) for row in rows_of("t", junit)
    }
    assert rows == {
        "t: unit": (1, 2, 0, 2.0),
        "t: cheats": (0, 1, 1, 18.0),
        "t: llmb-xla": (1, 0, 0, 2.0),
    }


def test_a_skip_is_told_with_its_reason_and_how_often(junit: Path) -> None:
    reasons = {row.part: row.reasons for row in rows_of("t", junit)}
    assert reasons["t: unit"] == ["2 no C compiler"]
    assert reasons["t: cheats"] == ["1 known, and said in tests/cheats/README.md"]


def test_the_table_shows_skips_failures_and_errors(junit: Path) -> None:
    shown = table([Row("lint", seconds=3, error="ruff ended with 1"), *rows_of("t", junit)])
    assert "ruff ended with 1" in shown
    assert "skipped: 2 no C compiler" in shown
    assert "failed: test_e: caught" in shown
    assert shown.splitlines()[0].split() == ["part", "passed", "skipped", "failed", "seconds"]


def test_every_command_of_a_part_is_run_though_one_fails(
    tmp_path: Path, progress: Progress
) -> None:
    second = tmp_path / "second"
    part = Part("two", (python("exit(3)"), python(f"open({str(second)!r}, 'w')")))
    (row,) = run(part, (), tmp_path, progress)
    assert second.exists()
    assert row.error is not None
    assert row.error.endswith("ended with 3")


def test_what_a_failed_part_printed_is_shown(
    tmp_path: Path, progress: Progress, capsys: pytest.CaptureFixture[str]
) -> None:
    code = "print(*range(90), 'the reason', sep='\\n'); exit(1)"
    (row,) = run(Part("loud", (python(code),)), (), tmp_path, progress)
    assert "the reason" in capsys.readouterr().out
    assert row.failures == [*map(str, range(81, 90)), "the reason"]


def test_a_tool_that_is_not_installed_is_a_failed_part(tmp_path: Path, progress: Progress) -> None:
    (row,) = run(Part("none", (("/nowhere/tool",),)), (), tmp_path, progress)
    assert row.error == "tool ended with 127"


def test_rows_come_in_the_order_of_the_parts_whoever_ends_first(tmp_path: Path) -> None:
    given = [Part("a", (python("pass"),), alone=True), Part("b", (python("pass"),))]
    assert [row.part for row in run_all(given, (), tmp_path)] == ["a", "b"]


def test_a_part_with_an_environment_of_its_own_brings_that_table(
    tmp_path: Path, progress: Progress, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [{"part": "apart"}, {"part": "apart: unit", "passed": 7}]
    lines = "\n".join(json.dumps(row) for row in rows)
    told = python(f"import os; open(os.environ[{parts.TABLE!r}], 'w').write({lines!r})")
    monkeypatch.setattr(parts, "_environment", lambda name: told)
    found = run(Part("apart", (), apart=True), (), tmp_path, progress)
    assert [(row.part, row.passed) for row in found] == [("apart", None), ("apart: unit", 7)]


def test_an_unknown_part_is_refused_with_the_known_ones(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["parts.py", "cheat"])
    with pytest.raises(SystemExit) as ended:
        parts.main()
    assert ended.value.code == 2
    assert "no part is called cheat" in capsys.readouterr().err
