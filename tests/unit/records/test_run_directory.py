"""The folder of a run: complete by one rename, or a note of what happened, even on a full disk."""

from __future__ import annotations

import errno
import io
import os
from datetime import datetime, timezone
from pathlib import Path

import pytest

from llmb.errors import RunFailedError, UsageError
from llmb.records import run_directory
from llmb.records.run_directory import RunDirectory, check_writable

CREATED = datetime(2026, 11, 21, 12, 30, 5, tzinfo=timezone.utc)
FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.fixture
def directory(tmp_path: Path) -> RunDirectory:
    return RunDirectory(tmp_path / "runs", CREATED, "llama-1.4b-BF16-cpu")


def log_of(directory: RunDirectory) -> str:
    return (directory.path / "log.txt").read_text()


def test_a_folder_is_named_by_time_and_label_and_starts_with_its_rooms(
    directory: RunDirectory,
) -> None:
    assert directory.path.name == "20261121T123005Z-llama-1.4b-BF16-cpu"
    names = {path.name for path in directory.path.iterdir()}
    assert names == {"plugin", "evidence", "log.txt", ".reserve"}
    directory.abandon("test")


def test_two_runs_in_one_second_get_folders_of_their_own(tmp_path: Path) -> None:
    made = [RunDirectory(tmp_path, CREATED, "x") for _ in range(3)]
    names = ["20261121T123005Z-x", "20261121T123005Z-x-1", "20261121T123005Z-x-2"]
    assert [directory.path.name for directory in made] == names
    for directory in made:
        directory.abandon("test")


def test_the_record_appears_whole_and_last_and_the_reserve_is_freed(
    directory: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    moves = []
    replace = os.replace

    def seen(source: Path, target: Path) -> None:
        moves.append((Path(source).read_bytes(), Path(target).name, Path(target).exists()))
        replace(source, target)

    monkeypatch.setattr(os, "replace", seen)
    directory.finish(b"{}\n")
    assert moves == [(b"{}\n", "record.json", False)]
    names = {path.name for path in directory.path.iterdir()}
    assert names == {"plugin", "evidence", "log.txt", "record.json"}


def test_a_run_that_does_not_finish_has_no_record_and_says_why(directory: RunDirectory) -> None:
    directory.log("measuring")
    directory.abandon("interrupted by the user")
    assert not (directory.path / "record.json").exists()
    assert not (directory.path / ".reserve").exists()
    assert log_of(directory) == "measuring\nthe run did not finish: interrupted by the user\n"


def test_files_are_written_below_the_folder_with_the_folders_they_need(
    directory: RunDirectory,
) -> None:
    directory.write("plugin/kernels/fused.py", b"FAST = True\n")
    assert (directory.path / "plugin/kernels/fused.py").read_bytes() == b"FAST = True\n"
    folder = directory.evidence_folder(2)
    assert folder == directory.path / "evidence" / "repeat-2"
    assert folder.is_dir()
    directory.abandon("test")


def test_the_log_names_no_place_of_this_machine(
    directory: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/home/somebody")
    directory.log("found in /home/somebody/models\n\n")
    directory.abandon("test")
    assert log_of(directory).startswith("found in ~/models\nthe run")


def test_what_a_child_writes_is_appended_to_the_log_even_when_it_fails(
    directory: RunDirectory,
) -> None:
    def failing() -> None:
        with directory.child_log() as output:
            output.write(b"Traceback \xff\n")
            raise KeyError

    with pytest.raises(KeyError):
        failing()
    with directory.child_log():
        pass
    directory.abandon("test")
    assert log_of(directory) == "Traceback \ufffd\nthe run did not finish: test\n"


def full_disk(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    """Let every write of bytes to a file of ``names`` fail as on a full disk."""
    write_bytes = Path.write_bytes

    def failing(path: Path, data: bytes) -> int:
        if path.name in names:
            raise FULL
        return write_bytes(path, data)

    monkeypatch.setattr(Path, "write_bytes", failing)


@pytest.mark.parametrize("name", ["audit.json", "plugin/a.py", "model.diff"])
def test_a_full_disk_is_a_failed_run_that_names_the_file(
    directory: RunDirectory, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    full_disk(monkeypatch, Path(name).name)
    expected = f"cannot write {name} of the run directory: No space left on device; make room"
    with pytest.raises(RunFailedError, match=expected):
        directory.write(name, b"x")
    directory.abandon("test")


def test_a_full_disk_at_the_record_leaves_no_record_and_the_reason_in_the_log(
    directory: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    full_disk(monkeypatch, "record.json.part")
    with pytest.raises(RunFailedError, match=r"record\.json\.part") as caught:
        directory.finish(b"{}")
    directory.abandon(str(caught.value))
    assert not (directory.path / "record.json").exists()
    assert "No space left on device" in log_of(directory)


def test_a_rename_that_fails_is_a_failed_run_without_a_record(
    directory: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(source: Path, target: Path) -> None:
        raise FULL

    monkeypatch.setattr(os, "replace", failing)
    with pytest.raises(RunFailedError, match=r"cannot write record\.json of"):
        directory.finish(b"{}")
    assert not (directory.path / "record.json").exists()
    directory.abandon("test")


def test_a_full_disk_at_a_new_folder_is_a_failed_run(
    directory: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(path: Path, *_: object, **__: object) -> None:
        raise FULL

    monkeypatch.setattr(Path, "mkdir", failing)
    for attempt in (lambda: directory.evidence_folder(0), lambda: directory.write("a/b", b"")):
        with pytest.raises(RunFailedError, match="No space left"):
            attempt()
    directory.abandon("test")


class FullLog(io.BytesIO):
    """A log on a disk that is full until the reserve has been given back."""

    reserve: Path
    text = b""

    def write(self, data: bytes) -> int:
        if self.reserve.exists():
            raise FULL
        type(self).text += data
        return len(data)


def test_the_reserve_is_given_back_so_that_a_full_disk_can_still_say_why(
    directory: RunDirectory,
) -> None:
    FullLog.reserve, FullLog.text = directory.path / ".reserve", b""
    assert FullLog.reserve.stat().st_size == 64 * 1024
    directory._log.close()
    directory._log = FullLog()
    with pytest.raises(RunFailedError, match=r"cannot write log\.txt"):
        directory.log("one more line")
    directory.abandon("the disk is full")
    assert FullLog.text == b"the run did not finish: the disk is full\n"


def test_a_disk_that_stays_full_does_not_hide_the_reason_behind_another_error(
    directory: RunDirectory,
) -> None:
    class Full(io.BytesIO):
        def write(self, data: bytes) -> int:
            raise FULL

    directory._log.close()
    directory._log = Full()
    directory.abandon("the disk is full")  # raises nothing of its own
    assert directory._log.closed


def test_abandoning_a_finished_run_changes_nothing_and_raises_nothing(
    directory: RunDirectory,
) -> None:
    directory.finish(b"{}")
    directory.abandon("interrupted by the user")
    assert "did not finish" not in log_of(directory)


def test_an_output_that_is_a_file_is_refused_by_its_flag(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for attempt in (
        lambda: check_writable(tmp_path / "file"),
        lambda: RunDirectory(tmp_path / "file", CREATED, "x"),
    ):
        with pytest.raises(UsageError, match=r"--output-dir .*file: cannot write there"):
            attempt()


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS, errno.EACCES])
def test_an_output_that_cannot_be_written_is_refused_before_any_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def failing(**_: object) -> str:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(run_directory.tempfile, "mkdtemp", failing)
    with pytest.raises(UsageError, match=os.strerror(code)):
        check_writable(tmp_path)


@pytest.mark.parametrize("name", [".reserve"])
def test_a_disk_full_at_the_very_start_is_a_usage_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    full_disk(monkeypatch, name)
    with pytest.raises(UsageError, match="No space left"):
        RunDirectory(tmp_path, CREATED, "x")


def test_a_folder_that_can_be_written_is_made_and_left_empty(tmp_path: Path) -> None:
    check_writable(tmp_path / "new" / "runs")
    assert list((tmp_path / "new" / "runs").iterdir()) == []
