"""``llmb export``: what is written where, and what is refused."""

from __future__ import annotations

import csv
import io
import json
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from llmb.cli import export
from llmb.errors import BundleRefusedError, UnavailableError, UsageError
from llmb.records.canonical import pretty_bytes
from tests.builders import make_record
from tests.unit.builders_times import noise, of_workload, record_of

SUBMISSIONS = Path(__file__).resolve().parents[3] / "submissions"


@pytest.fixture
def folder(tmp_path):
    for name, record in {"a": make_record(1), "b": of_workload("litgpt-train")}.items():
        (tmp_path / "runs" / name).mkdir(parents=True)
        content = pretty_bytes(record.model_copy(update={"run_id": name * 32}))
        (tmp_path / "runs" / name / "record.json").write_bytes(content)
    return tmp_path


def call(*words):
    return CliRunner().invoke(export.command, [str(word) for word in words], catch_exceptions=False)


def read(text):
    return list(csv.DictReader(io.StringIO(text)))


def test_a_folder_of_runs_is_a_row_each(folder) -> None:
    lines = read(call(folder / "runs", "--format", "csv").stdout)
    assert [line["run_id"] for line in lines] == ["a" * 32, "b" * 32]


def test_published_rows_are_of_the_workloads_exported_or_of_all(folder) -> None:
    lines = read(call(folder / "runs" / "b", "--format", "csv", "--published").stdout)
    assert lines[0]["kind"] == "measured"
    assert {line["workload"] for line in lines} == {"litgpt-train"}
    every = json.loads(call("--published", "--format", "json").stdout)["rows"]
    assert {row["kind"] for row in every} == {"published"}
    assert len({row["workload"] for row in every}) > 10


def test_steps_are_rows_of_their_own(folder) -> None:
    lines = read(call(folder / "runs" / "a", "--format", "csv", "--steps").stdout)
    assert len(lines) == 52
    assert sum(line["timed"] == "true" for line in lines) == 50


def test_output_goes_to_a_file_and_nothing_to_stdout(folder) -> None:
    found = call(folder / "runs" / "a", "--format", "mllog", "--output", folder / "result_0.txt")
    assert found.stdout == ""
    assert (folder / "result_0.txt").read_text().startswith(":::MLLOG {")
    with pytest.raises(UsageError, match="cannot be written"):
        call(folder / "runs" / "a", "--format", "csv", "--output", folder / "no" / "where.csv")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--format", "csv"], "name a run"),
        (["runs/a"], "--format"),
        (["runs/a", "--format", "xlsx"], "xlsx"),
        (["runs", "--format", "mllog"], "one run, not 2"),
        (["runs/a", "--format", "mllog", "--steps"], "takes no --steps"),
        (["runs/a", "--format", "mllog", "--published"], "takes no --steps, --published"),
        (["runs/a", "--format", "csv", "--steps", "--published"], "choose one"),
    ],
)
def test_misuse_ends_with_2_and_says_what_to_do(folder, monkeypatch, words, said) -> None:
    monkeypatch.chdir(folder)
    found = CliRunner().invoke(export.command, words)
    assert found.exit_code == 2
    assert said in found.stderr
    assert found.stdout == ""


def test_without_pyarrow_parquet_says_what_to_install(folder, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(UnavailableError, match=r"pip install 'llmb\[parquet\]'") as caught:
        call(folder / "runs" / "a", "--format", "parquet", "--output", folder / "runs.parquet")
    assert caught.value.exit_code == 3
    assert not (folder / "runs.parquet").exists()


def test_a_forged_run_is_passed_over_beside_others_and_refused_alone(folder) -> None:
    forged = record_of(noise(50, seed=1), edit=lambda d: d["result"].update(tokens_per_second=9e9))
    (folder / "forged.json").write_bytes(pretty_bytes(forged))
    found = call(folder / "runs", folder / "forged.json", "--format", "csv")
    assert len(read(found.stdout)) == 2
    assert found.stderr.startswith("llmb: passed over run 0123456789abcdef")
    with pytest.raises(BundleRefusedError):
        call(folder / "forged.json", "--format", "csv")


@pytest.mark.skipif(not SUBMISSIONS.is_dir(), reason="an sdist has none")
def test_every_committed_bundle_is_exported_in_every_format_that_needs_nothing() -> None:
    bundles = sorted(path.parent for path in SUBMISSIONS.rglob("MANIFEST.json"))
    lines = read(call(*bundles, "--format", "csv").stdout)
    assert len(lines) == len(bundles) > 0
    assert {line["verdict"] for line in lines} <= {"CONSISTENT", "REPRODUCED", "FLAGGED"}
    for bundle in bundles:
        assert call(bundle, "--format", "mllog").stdout.count(":::MLLOG ") > 30
