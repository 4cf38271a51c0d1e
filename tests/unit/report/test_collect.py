"""Records are found wherever they lie, each run once; what cannot be read is told."""

from __future__ import annotations

import os

import pytest

from llmb.errors import BundleRefusedError, UsageError
from llmb.records.canonical import pretty_bytes
from llmb.report.collect import collect, collect_usual
from tests import builders


@pytest.fixture(scope="module")
def record():
    return builders.make_record(1)


def put(folder, content):
    folder.mkdir(parents=True)
    (folder / "record.json").write_bytes(content)
    return folder


def other(record, digit):
    return builders.edited(record, lambda data: data.update(run_id=digit * 32))


def test_records_below_runs_and_submissions_are_found_and_each_run_counts_once(tmp_path, record):
    put(tmp_path / "runs" / "one", pretty_bytes(record))
    put(tmp_path / "runs" / "deep" / "two", pretty_bytes(other(record, "b")))
    builders.write(tmp_path / "submissions" / "me" / "box", builders.bundle_files(record))
    put(tmp_path / "elsewhere" / "three", pretty_bytes(other(record, "c")))
    found = collect_usual(tmp_path)
    assert [r.run_id for r in found.records] == ["b" * 32, record.run_id]
    assert found.refused == ()


def test_a_folder_without_runs_is_empty_here_and_refused_when_named(tmp_path):
    assert collect_usual(tmp_path).records == ()
    with pytest.raises(UsageError, match="there is no run in"):
        collect([tmp_path])


def test_what_cannot_be_read_below_a_folder_is_a_line_and_the_others_are_shown(tmp_path, record):
    put(tmp_path / "runs" / "a", b"{")
    put(tmp_path / "runs" / "b", b'{"schema": "llmb.run/9"}')
    put(tmp_path / "runs" / "c", b"[" * 9 * 2**20)
    put(tmp_path / "runs" / "d", pretty_bytes(record))
    found = collect_usual(tmp_path)
    assert [r.run_id for r in found.records] == [record.run_id]
    for line, words in zip(found.refused, ("not strict JSON", "update llmb", "bytes"), strict=True):
        assert words in line
        assert "\n" not in line
    assert collect([tmp_path]) == found


def test_a_record_that_is_named_itself_must_be_readable(tmp_path, record):
    run = put(tmp_path / "run", pretty_bytes(record))
    assert collect([run]).records == collect([run / "record.json"]).records == (record,)
    with pytest.raises(BundleRefusedError):
        collect([put(tmp_path / "bad", b"{}")])
    with pytest.raises(UsageError, match="cannot read"):
        collect([tmp_path / "none"])


def test_links_and_pipes_are_not_followed_and_do_not_block(tmp_path, record):
    put(tmp_path / "runs" / "real", pretty_bytes(record))
    (tmp_path / "runs" / "loop").symlink_to(tmp_path / "runs")
    (tmp_path / "runs" / "pipe").mkdir()
    os.mkfifo(tmp_path / "runs" / "pipe" / "record.json")
    found = collect_usual(tmp_path)
    assert len(found.records) == 1
    assert "not a regular file" in found.refused[0]
