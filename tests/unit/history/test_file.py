"""The file of the history: writers killed at random, torn lines, and lines of strangers."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from llmb.errors import RunFailedError, UsageError
from llmb.history import file
from llmb.records.canonical import as_json
from tests.unit.builders_history import line

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def path(tmp_path):
    return tmp_path / file.FILE


def text(number=0, **changes):
    return file._text(line(number, **changes))


def test_what_was_added_is_read_in_its_order(path) -> None:
    assert file.append(path, [line(1), line(0)]) == 2
    assert file.append(path, [line(2)]) == 1
    history = file.read(path)
    assert history.lines == (line(1), line(0), line(2))
    assert history.skipped == {}


def test_no_acknowledged_line_of_two_writers_killed_at_random_is_lost(tmp_path) -> None:
    command = [sys.executable, "-m", "tests.unit.history.killed_writers", str(tmp_path / "h"), "20"]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["torn"] >= 3, "the test kills no writer in the middle of a line"
    assert len(found["acknowledged"]) >= 20
    for skipped, ids in (found["before"], found["after"]):
        assert set(found["acknowledged"]) <= set(ids)
        assert len(ids) == len(set(ids))
        assert sum(skipped.values()) <= 1
    assert found["after"][0] == {}, "the next writer repairs the torn line"


@pytest.mark.parametrize("length", [1, 15, 30, 200, -2])
def test_a_torn_line_is_counted_and_the_next_writer_removes_it(path, length) -> None:
    path.write_bytes(text(0) + text(1)[:length])
    assert file.read(path).skipped == {"broken": 1}
    file.append(path, [line(2)])
    assert path.read_bytes() == text(0) + text(2)


def test_a_whole_line_without_its_end_is_kept(path) -> None:
    path.write_bytes(text(0) + text(1)[:-1])
    file.append(path, [line(2)])
    assert file.read(path).lines == (line(0), line(1), line(2))


def test_a_text_that_is_not_llmbs_is_never_removed(path) -> None:
    path.write_bytes(b"my notes")
    file.append(path, [line(0)])
    assert path.read_bytes() == b"my notes\n" + text(0)
    assert file.read(path).skipped_words == "1 line skipped: 1 broken"


HOSTILE = {
    "no JSON": b"{",
    "a list": b"[]",
    "NaN": text(1).replace(b"1000.0", b"NaN"),
    "an infinity": text(1).replace(b"1000.0", b"1e999"),
    "a negative rate": text(1).replace(b"1000.0", b"-1.0"),
    "a key twice": text(1).replace(b'{"schema"', b'{"run":"x","schema"'),
    "another key": text(1).replace(b'{"schema"', b'{"more":1,"schema"'),
    "another schema": text(1).replace(b"llmb.history/1", b"llmb.history/2"),
    "half of a surrogate pair": text(1).replace(b"a-run", rb"\ud800"),
    "no UTF-8": text(1).replace(b"a-run", b"\xff"),
    "a deep value": b"[" * 5000,
    "a long text": text(1).replace(b"a-run", b"x" * 300),
    "another time": text(1).replace(b"2026-11", b"later--"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_line_is_skipped_and_counted_and_no_other(path, name) -> None:
    path.write_bytes(text(0) + HOSTILE[name].rstrip(b"\n") + b"\n" + text(2))
    history = file.read(path)
    assert history.lines == (line(0), line(2))
    assert history.skipped == {"broken": 1}


def test_a_huge_line_takes_no_memory_and_hides_no_line(path) -> None:
    path.write_bytes(text(0) + b"x" * (file.MAX_LINE_BYTES * 200) + b"\n" + text(1))
    history = file.read(path)
    assert history.lines == (line(0), line(1))
    assert history.skipped == {"too long": 1}


def test_of_too_many_lines_the_newest_are_read(path, monkeypatch) -> None:
    monkeypatch.setattr(file, "MAX_LINES", 2)
    file.append(path, [line(n) for n in range(5)])
    assert file.read(path).lines == (line(3), line(4))
    assert file.read(path).skipped == {"older": 3}


def test_a_run_is_added_once(path) -> None:
    assert file.append(path, [line(0), line(1)], once=True) == 2
    assert file.append(path, [line(1), line(2)], once=True) == 1
    assert file.read(path).lines == (line(0), line(1), line(2))


def test_a_full_disk_leaves_the_file_as_it_was(path, monkeypatch) -> None:
    file.append(path, [line(0)])
    whole = os.write

    def full(descriptor, data):
        if len(data) < 600:
            raise OSError(errno.ENOSPC, "No space left on device")
        return whole(descriptor, bytes(data)[:500])

    monkeypatch.setattr(file.os, "write", full)
    with pytest.raises(RunFailedError, match="No space left on device"):
        file.append(path, [line(1)])
    assert path.read_bytes() == text(0)


def test_a_writer_that_waits_in_vain_says_so(path, monkeypatch) -> None:
    file.append(path, [line(0)])
    monkeypatch.setattr(file, "_TRIES", 2)
    with path.open("rb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(RunFailedError, match="holds the lock"):
            file.append(path, [line(1)])
        assert file.read(path).lines == (line(0),), "a reader reads on"


def test_a_history_that_was_replaced_while_a_writer_waited_is_opened_again(path, monkeypatch):
    file.append(path, [line(0)])
    lock = file._lock

    def replaced(descriptor, kind):
        monkeypatch.setattr(file, "_lock", lock)
        path.unlink()
        path.write_bytes(text(5))
        return lock(descriptor, kind)

    monkeypatch.setattr(file, "_lock", replaced)
    file.append(path, [line(1)])
    assert file.read(path).lines == (line(5), line(1))


def test_no_other_thing_than_a_file_is_opened(path) -> None:
    os.mkfifo(path)
    with pytest.raises(UsageError, match="no regular file"):
        file.read(path)
    with pytest.raises(UsageError, match="no regular file"):
        file.append(path, [line(0)])
    with pytest.raises(UsageError, match="no history at"):
        file.read(path / "missing")


def test_a_line_is_ascii_and_no_text_of_it_ends_a_line(path) -> None:
    raw = text(0, run="a\nb\u2028\x1b[2J")
    assert raw.isascii()
    assert raw.count(b"\n") == 1
    assert json.loads(raw) == as_json(line(0, run="a\nb\u2028\x1b[2J"))
