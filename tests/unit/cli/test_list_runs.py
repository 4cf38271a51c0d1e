"""``llmb list``, ``latest`` and ``tag``: runs by name, in 80 columns, whatever is in the folder."""

from __future__ import annotations

import json
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from llmb import cli
from llmb.cli.list_runs import table
from llmb.errors import UsageError
from llmb.records.canonical import pretty_bytes
from llmb.records.run_list import line_of
from llmb.records.run_names import runs_in
from tests.builders import make_record

NAMES = [f"2026110{day}T120000Z-llama-1.4b-BF16-fast" for day in (1, 2, 3, 4)]


@pytest.fixture(autouse=True)
def _runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make three runs, the second in another format, and a run without a record."""
    monkeypatch.chdir(tmp_path)
    record = json.loads(pretty_bytes(make_record()))
    for name, precision in zip(NAMES, ("BF16", "FP32", "BF16"), strict=False):
        (Path("runs") / name).mkdir(parents=True)
        record["config"]["precision"]["name"] = precision
        (Path("runs") / name / "record.json").write_text(json.dumps(record))
    (Path("runs") / NAMES[3]).mkdir()
    (Path("runs") / NAMES[3] / "log.txt").write_text("the run did not finish: \x1b[2Jkilled\n")


def told(*words: str) -> Result:
    return CliRunner().invoke(cli.llmb, list(words), catch_exceptions=False)


def listed(*words: str) -> list[str]:
    return [run["name"] for run in json.loads(told("list", "--json", *words).stdout)["runs"]]


def test_the_newest_run_is_the_last_line_and_a_run_without_a_record_has_a_line() -> None:
    lines = told("list").stdout.splitlines()
    assert [line.split("  ")[1] for line in lines[1:]] == NAMES
    assert "no result: \\x1b[2Jkilled" in lines[-1]
    assert "±" in lines[1]


@pytest.mark.parametrize(
    ("words", "numbers"),
    [
        ((), [0, 1, 2, 3]),
        (("--precision", "FP*"), [1]),
        (("--workload", "gpt2*"), []),
        (("--plugin", "fast", "--last", "2"), [1, 2]),
        (("--verdict", "unverified"), [0, 1, 2]),
        (("--last", "1"), [3]),
        (("--tag", "base"), [0]),
    ],
)
def test_filters_leave_the_runs_that_fit(words: tuple[str, ...], numbers: list[int]) -> None:
    assert told("tag", "base", NAMES[0][:8]).exit_code == 0
    assert listed(*words) == [NAMES[number] for number in numbers]


def test_no_name_is_cut_in_80_columns_and_the_columns_left_out_are_named() -> None:
    told("tag", "base", "latest")
    shown = [click.unstyle(text) for text in table([*map(line_of, runs_in(Path("runs")))], 80)]
    assert [text.split()[0] for text in shown[1:5]] == NAMES
    assert max(map(len, shown)) <= 80
    assert "base" in shown[3]
    assert shown[5].startswith("not shown: UTC, note, device")


def test_an_empty_folder_and_filters_without_a_run_say_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "none").mkdir()
    assert "makes a run in seconds" in told("list", "--output-dir", "none").stdout
    assert "none of the 4 runs in runs fits" in told("list", "--workload", "x").stdout
    with pytest.raises(UsageError, match="there is no such folder"):
        told("list", "--output-dir", "nowhere")


def test_latest_prints_a_path_and_names_the_newer_run_without_a_record() -> None:
    done = told("latest")
    assert done.stdout == f"runs/{NAMES[2]}\n"
    assert f"the newer {NAMES[3]} has no record" in done.stderr


def test_a_tag_is_given_shown_and_taken_away() -> None:
    assert told("tag", "base").stdout == f"runs/{NAMES[2]}: tags base\n"
    assert "base" in told("list").stdout
    assert told("tag", "base", "--remove").stdout == f"runs/{NAMES[2]}: tags none\n"
    with pytest.raises(UsageError, match="is no run directory"):
        told("tag", "base", "runs")
