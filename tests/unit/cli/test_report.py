"""``llmb report``: tables on stdout, what could not be read on stderr."""

from __future__ import annotations

import csv
import io
import json

import pytest
from click.testing import CliRunner

from llmb.cli import report
from llmb.errors import BundleRefusedError, UsageError
from llmb.records.canonical import pretty_bytes
from llmb.workloads.published import documents
from tests.unit.builders_workloads import of_workload


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "runs" / "one"
    folder.mkdir(parents=True)
    (folder / "record.json").write_bytes(pretty_bytes(of_workload("alcf-7b", batch_size=32)))
    return tmp_path


def call(*words):
    return CliRunner().invoke(report.command, [str(word) for word in words], catch_exceptions=False)


def test_every_document_that_publishes_can_be_asked_for():
    assert set(report.DOCUMENTS) == documents().keys()


@pytest.mark.parametrize("name", report.DOCUMENTS)
def test_every_documents_tables_are_markdown_json_and_csv(here, name):
    tables = documents()[name].tables
    text = call("--like", name).stdout
    assert all(f"## {table.title}\n" in text for table in tables)
    (found,) = json.loads(call("--like", name, "--json").stdout)
    assert [table["title"] for table in found["tables"]] == [table.title for table in tables]
    lines = list(csv.DictReader(io.StringIO(call("--like", name, "--csv").stdout)))
    assert {line["document"] for line in lines} == {name}


def test_without_paths_the_runs_here_are_shown(here):
    line = next(line for line in call("--like", "alcf").stdout.splitlines() if "Fast" in line)
    assert line.startswith("| alcf-7b |  | ")
    assert "not measured" not in line


def test_several_documents_come_one_after_the_other(here):
    text = call("--like", "nemo", "--like", "alcf", "--like", "nemo").stdout
    assert text.count("# NeMo BERT") == 1
    assert text.index("# NeMo BERT") < text.index("# 1T Large Language Model Training")


def test_a_record_that_cannot_be_read_is_a_line_on_stderr_and_the_rest_is_shown(here):
    bad = here / "runs" / "bad"
    bad.mkdir()
    (bad / "record.json").write_bytes(b'{"schema": "\x1b[2J"}')
    found = call("--like", "alcf")
    assert "Fast" in found.stdout
    assert found.stderr.startswith("llmb: passed over runs/bad/record.json: ")
    assert found.stderr.count("\n") == 1
    assert "\x1b" not in found.stderr
    with pytest.raises(BundleRefusedError):
        call("--like", "alcf", bad)


def test_a_place_without_runs_is_a_usage_error(here):
    (here / "empty").mkdir()
    with pytest.raises(UsageError, match="there is no run in"):
        call("--like", "alcf", here / "empty")


@pytest.mark.parametrize(
    "words",
    [
        ["--like", "mlperf"],
        ["--like", "alcf", "--json", "--csv"],
        ["--like", "alcf", "--format", "html"],
        ["--format", "csv", "--json"],
        ["--format", "pdf"],
        ["--debug"],
    ],
)
def test_one_form_is_chosen_and_one_that_there_is(words):
    found = CliRunner().invoke(report.command, words)
    assert found.exit_code == 2
    assert "Traceback" not in found.output
