"""``llmb history``: adding, drawing, filters, and what strangers write into lines."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from llmb.cli import history
from llmb.cli.history_chart import chart
from llmb.errors import BundleRefusedError, UsageError
from llmb.history import changes, file
from llmb.history.changes import ChangePoint
from llmb.history.series import series_of
from llmb.records.canonical import pretty_bytes
from tests.builders import edited, make_record
from tests.unit.builders_history import CEILING, line, lines, noisy

HOSTILE = "evil\x1b[2J\u202e<script>[link=x]"


@pytest.fixture
def path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(changes, "is_available", lambda: False)
    return tmp_path / "runs" / file.FILE


def call(*words, ok=True):
    done = CliRunner().invoke(history.command, [*map(str, words)], catch_exceptions=not ok)
    assert (done.exit_code == 0) == ok, done.output
    return done


def run_directory(folder, name, **changes):
    where = folder / name
    where.mkdir()
    record = edited(make_record(1), lambda data: data.update(changes))
    (where / "record.json").write_bytes(pretty_bytes(record))
    return where


def test_runs_made_elsewhere_are_added_once(path, tmp_path) -> None:
    runs = [run_directory(tmp_path, name, run_id=name * 32) for name in "ab"]
    assert "2 runs added" in call("add", *runs, runs[0]).stdout
    assert "0 runs added, 1 there already" in call("add", runs[1], "--branch", "main").stdout
    assert [(one.run, one.branch) for one in file.read(path).lines] == [("a", None), ("b", None)]


def test_a_run_stays_when_its_directory_is_gone(path, tmp_path) -> None:
    run = run_directory(tmp_path, "a")
    call("add", run)
    (run / "record.json").unlink()
    assert "1 run, oldest first" in call().stdout


def test_a_lying_record_is_not_added(path, tmp_path) -> None:
    lying = run_directory(tmp_path, "a")
    record = json.loads((lying / "record.json").read_bytes())
    record["result"]["tokens_per_second"] *= 2
    (lying / "record.json").write_text(json.dumps(record))
    with pytest.raises(BundleRefusedError, match="its stamps give"):
        call("add", lying)
    assert not path.exists()


def test_each_series_is_drawn_with_its_newest_runs(path) -> None:
    file.append(path, [*lines(noisy(12)), line(20, work="1" * 16, commit="ab" * 20)])
    text = call("--last", "10").stdout
    assert text.count("oldest first") == 2
    assert "the newest 6 of 10 runs" in text
    assert "ababababab" in text
    assert max(map(len, text.splitlines())) <= 100
    assert "2026-11-01 11:00" in call("--over", "dates").stdout


def test_hostile_texts_of_a_line_are_escaped_everywhere(path) -> None:
    names = ("run", "workload", "mode", "settings", "precision", "plugin", "device", "branch")
    file.append(path, [line(0, **dict.fromkeys(names, HOSTILE))])
    with path.open("ab") as raw:
        raw.write(b"{\x1b[2J\n")
    done = call("--html", "page.html")
    page = (path.parent.parent / "page.html").read_text()
    for text in (done.stdout, done.stderr, page):
        assert not {"\x1b", "\u202e"} & set(text)
    assert "<script>" not in page
    assert "1 line skipped: 1 broken" in done.stderr


def test_of_many_series_those_with_the_newest_runs_are_printed(path) -> None:
    file.append(path, [line(n, work=f"{n:016x}") for n in range(25)])
    text = call().stdout
    assert text.count("oldest first") == 20
    assert "5 more series: choose with --workload, or --json" in text


def test_json_has_every_run_and_the_skipped_lines(path) -> None:
    file.append(path, lines([1000, 1001]))
    found = json.loads(call("show", "--json").stdout)
    assert [run["tokens_per_second"] for run in found["series"][0]["runs"]] == [1000, 1001]
    assert (found["skipped"], found["change_points_looked_for"]) == ({}, False)


def test_without_a_history_a_line_says_where_it_was_looked_for(path) -> None:
    with pytest.raises(UsageError, match=r"no history at 'runs/history\.jsonl'"):
        call()


def test_a_chart_fits_its_width_and_marks_steps_and_intervals() -> None:
    rates = [1000 + 40 * (n % 2) for n in range(200)]
    ends = [line(n, x, ci95=(x - 9, x + 9), interval_values=5) for n, x in enumerate(rates)]
    (series,) = series_of(ends)
    drawn = chart(series, [ChangePoint(190, 1000, 1001, 1e-9)], 80, ascii_only=True)
    assert max(map(len, drawn)) <= 80
    assert {"o", "|", "-", ":"} <= set("".join(drawn[:8]))
    assert "".join(drawn).isascii()
    assert "69 of 200 runs" in drawn[-1]


def test_one_run_of_another_speed_is_an_arrow_and_leaves_the_others_visible() -> None:
    (series,) = series_of(lines([*noisy(20), 5000.0, 10.0]))
    drawn = chart(series, (), 80)
    assert "▲" in drawn[0]
    assert "▼" in drawn[7]
    assert len([text for text in drawn[:8] if "●" in text]) >= 4


def test_several_machines_are_drawn_by_the_share_of_the_ceiling() -> None:
    given = [line(0, 1000), line(1, 500, CEILING / 2, device="slow"), line(2, 1010)]
    (series,) = series_of(given)
    assert "share of ceiling (several machines), 3 runs" in chart(series, (), 80)[-1]
