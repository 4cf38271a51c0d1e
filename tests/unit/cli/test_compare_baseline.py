"""``llmb compare --baseline``: a branch or a run as the baseline, formats, exit codes."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from llmb import cli
from llmb.cli import compare
from llmb.errors import RequirementError, UsageError
from llmb.history import file
from llmb.history.line import line_of_a_stranger
from llmb.records.canonical import pretty_bytes
from tests.builders import edited
from tests.unit.builders_times import noise, record_of
from tests.unit.comparison.test_compare import named


def made(mean, name, **changes):
    """Return a run of one process with ``mean`` seconds a step."""
    record = record_of(noise(50, seed=7, mean=mean, deviation=0.005), edit=named(name))
    return edited(record, lambda data: data.update(changes))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a folder of runs (same, slower, invalid), and a history of six runs of main."""
    where = tmp_path_factory.mktemp("runs")
    records = {
        "same": made(0.1, "a"),
        "slower": made(0.106, "b"),
        "invalid": record_of(noise(50, seed=1), edit=named("c", verdict="INVALID")),
    }
    for name, record in records.items():
        (where / name).mkdir()
        (where / name / "record.json").write_bytes(pretty_bytes(record))
    first = line_of_a_stranger(made(0.1, "d"), "x")
    history = []
    for n, noise_of_it in enumerate((1.004, 0.997, 1.002, 0.999, 0.996, 1.003)):
        changes = {
            "tokens_per_second": first.tokens_per_second * noise_of_it,
            "fraction_of_ceiling": first.fraction_of_ceiling * noise_of_it,
        }
        named_so = {"run_id": f"{n:032x}", "branch": "main"}
        history.append(first.model_copy(update={**named_so, **changes}))
    file.append(where / file.FILE, history)
    return where


def call(*words):
    return CliRunner().invoke(compare.command, [*map(str, words)], catch_exceptions=False)


def test_a_branch_is_a_baseline_and_a_regression_fails_with_seven(folder, monkeypatch) -> None:
    words = ["--baseline", "main", "--fail-on", "regression"]
    assert "no change shown" in call(*words, folder / "same").stdout
    with pytest.raises(RequirementError, match="1 of 1 runs: slower: regression: tokens/s -5"):
        call(*words, folder / "slower")
    monkeypatch.setattr("sys.argv", ["llmb", "compare", *words, str(folder / "slower")])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 7


def test_without_fail_on_a_regression_is_shown_alone(folder) -> None:
    assert "regression: tokens/s -5" in call("--baseline", "main", folder / "slower").stdout


def test_a_step_below_the_one_that_counts_does_not_fail(folder) -> None:
    words = ("--baseline", "main", "--fail-on", "regression", "--by", "8%")
    assert "smaller than the step that counts" in call(*words, folder / "slower").stdout


def test_a_run_is_a_baseline_too(folder) -> None:
    text = call("--baseline", folder / "same", folder / "slower").stdout
    assert "regression: tokens/s -5" in text
    assert "fewer than 3 runs to compare with" in text


def test_a_branch_without_runs_decides_nothing_and_fails_only_if_asked(folder) -> None:
    words = ("--baseline", "branch:topic", folder / "same")
    assert "not decided: the baseline branch:topic has no run yet" in call(*words).stdout
    with pytest.raises(RequirementError, match="not decided"):
        call(*words, "--fail-on", "undecided")


def test_an_invalid_run_is_refused(folder) -> None:
    with pytest.raises(UsageError, match="INVALID"):
        call("--baseline", "main", folder / "invalid")


def test_a_mistyped_path_is_no_empty_branch(folder) -> None:
    with pytest.raises(UsageError, match=r"no run there, and no branch of .*; branches: main"):
        call("--baseline", "old.zip", folder / "same")


def test_json_and_junit_and_github_say_the_same(folder) -> None:
    words = ("--baseline", "main", folder / "slower", "--format")
    (found,) = json.loads(call(*words, "json").stdout)
    assert (found["schema"], found["outcome"]) == ("llmb.baseline/1", "regression")
    assert len(found["runs"]) == 6
    assert "🔴 regression" in call(*words, "github").stdout
    assert 'failures="0"' in call(*words, "junit").stdout
    with pytest.raises(RequirementError):
        call(*words, "junit", "--fail-on", "regression")


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("--format", "github"), "only with --baseline"),
        (("--fail-on", "regression"), "only with --baseline"),
        (("--baseline", "x", "--require", "verdict==CONSISTENT"), "goes without --require"),
        (("--baseline", "x", "--by", "nan"), "no share below 1"),
        (("--baseline", "x", "--by", "100%"), "no share below 1"),
        (("--json", "--format", "text"), "choose one"),
    ],
    ids=str,
)
def test_options_that_do_not_fit_are_refused(folder, words, why) -> None:
    done = CliRunner().invoke(compare.command, [*words, str(folder / "same"), str(folder / "same")])
    assert done.exit_code == 2
    assert why in done.output.replace("\n", " ")
