"""``llmb report`` without ``--like``: the ranking on stdout or in a file, what is refused told."""

from __future__ import annotations

import csv
import io
import json

import pytest
from click.testing import CliRunner

from llmb.cli import report
from llmb.cli.show import command_line
from llmb.errors import UsageError
from tests import builders
from tests.unit.builders_board import put


def record(run, timed_steps=50):
    """Return the record of a run that verifies; one of 60 steps is the faster."""
    run_id = f"{run:032x}"
    return builders.make_record(repeats=1, timed_steps=timed_steps, run_id=run_id)


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    put(tmp_path / "submissions", record(1))
    put(tmp_path / "submissions", record(2, timed_steps=60))
    return tmp_path


def call(*words):
    return CliRunner().invoke(report.command, [str(word) for word in words], catch_exceptions=False)


def test_submissions_are_ranked_as_markdown_in_a_pipe(here):
    found = call()
    assert found.stdout.startswith("# llmb leaderboard\n")
    ranks = [line for line in found.stdout.splitlines() if line.startswith(("| 1 ", "| 2 "))]
    assert len(ranks) == 2
    assert found.stderr == ""


@pytest.mark.parametrize("words", [["--format", "json"], ["--json"]])
def test_json_is_a_format_and_a_flag(here, words):
    (group,) = json.loads(call(*words).stdout)["groups"]
    assert [row["path"][-1] for row in group["rows"]] == ["2", "1"]


def test_the_name_of_the_output_says_the_format(here):
    for name, start in (
        ("a.html", "<!doctype"),
        ("a.csv", "kind,"),
        ("a.json", "{"),
        ("a.md", "#"),
    ):
        assert call("--output", name).stdout == ""
        assert (here / name).read_text().startswith(start)
    assert call("--format", "csv", "--output", "a.md").exit_code == 0
    assert (here / "a.md").read_text().startswith("kind,")


def test_the_page_has_the_command_of_each_run(here):
    text = call("--format", "html").stdout
    assert json.dumps(command_line(record(1)))[1:-1].replace("'", "\\u0027") in text


def test_a_refused_bundle_is_a_line_on_stderr_that_cannot_act(here):
    place = put(here / "submissions", record(3), "\x1b[2Jevil")
    (place / "log.txt").write_text("edited")
    found = call("--csv")
    assert found.stderr.startswith("llmb: refused \\x1b[2Jevil/box/work/00000003: ")
    assert found.stderr.count("\n") == 1
    assert "\x1b" not in found.stdout
    kinds = [line["kind"] for line in csv.DictReader(io.StringIO(found.stdout))]
    assert kinds[:3] == ["ranked", "ranked", "refused"]


def test_only_the_paths_that_are_named_are_ranked(here):
    put(here / "others", record(4))
    (group,) = json.loads(call("others", "--json").stdout)["groups"]
    assert len(group["rows"]) == 1


def test_results_are_kept_in_the_users_cache_and_the_second_time_is_the_same(here):
    first = call("--json").stdout
    kept = list((here / "cache" / "llmb" / "verified").iterdir())
    assert len(kept) == 2
    assert call("--json").stdout == first
    kept[0].write_text(kept[0].read_text().replace('"fault":null', '"fault":"from the cache"'))
    assert "from the cache" in call("--json").stderr


def test_a_bundle_that_does_not_verify_is_refused_with_its_first_failed_check(here):
    def faster(data):
        data["result"]["tokens_per_second"] *= 9

    put(here / "submissions", builders.edited(record(3), faster))
    found = call("--json")
    start = "llmb: refused acme/box/work/00000003: recomputation: result.tokens_per_second"
    assert found.stderr.startswith(start)
    assert found.stderr.count("\n") == 1
    (group,) = json.loads(found.stdout)["groups"]
    assert len(group["rows"]) == 2


def test_where_there_is_nothing_to_rank_one_line_says_so(here, tmp_path):
    with pytest.raises(UsageError, match="there is nothing at 'none'"):
        call("none")
    (here / "empty").mkdir()
    with pytest.raises(UsageError, match="there is no bundle in 'empty'"):
        call("empty")


def test_an_output_that_cannot_be_written_is_a_usage_error(here):
    with pytest.raises(UsageError, match=r"--output 'none/a\.html': No such file"):
        call("--output", "none/a.html")
    with pytest.raises(UsageError, match="Is a directory"):
        call("--output", "submissions")


def test_a_format_on_stdout_ends_with_one_line_break(here):
    for words in ([], ["--format", "csv"], ["--json"]):
        text = call(*words).stdout
        assert text.endswith("\n")
        assert not text.endswith("\n\n"), words
