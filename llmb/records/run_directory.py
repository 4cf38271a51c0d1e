"""The folder that a run writes; ``record.json`` appears last, by rename, or not at all."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import IO

from llmb.errors import RunFailedError, UsageError
from llmb.records.evidence import EVIDENCE_FOLDER
from llmb.records.redact import redact_paths

RECORD, AUDIT, SYSTEM, LOG = "record.json", "audit.json", "system.json", "log.txt"
MODEL_DIFF, SETTINGS_DIFF, SOURCES_DIFF = "model.diff", "settings.diff", "sources.diff"
PLUGIN_FOLDER = "plugin"
#: The page of the run, made from the record; not part of a bundle.
REPORT = "report.html"
#: Traces for the user who made the run; not part of a bundle.
PROFILE_FOLDER = "profile"
#: Name of the folder with the last collective calls of each rank, if a run of ranks failed.
CALLS_FOLDER = "collectives"
#: Whole weights of a run with an interrupted audit, until ``llmb audit --resume`` finishes.
UNFINISHED = "unfinished"
#: A reserve file, deleted if the disk is full, to make room for the reason in the log.
_RESERVE, _RESERVE_BYTES = ".reserve", 64 * 1024


class RunDirectory:
    """One run's folder. An error of a failed write names the file and the reason."""

    def __init__(self, output: Path, created: datetime, label: str) -> None:
        """Create ``output``/<utc>-``label``.

        Raises:
            UsageError: the folder cannot be created or written.
        """
        stamp = created.strftime("%Y%m%dT%H%M%SZ")
        try:
            output.mkdir(parents=True, exist_ok=True)
            self.path = make_first_free(output, f"{stamp}-{label}")
            (self.path / _RESERVE).write_bytes(b"\0" * _RESERVE_BYTES)
            (self.path / PLUGIN_FOLDER).mkdir()
            (self.path / EVIDENCE_FOLDER).mkdir()
            self._log = (self.path / LOG).open("ab", buffering=0)
        except OSError as error:
            if hasattr(self, "path"):
                shutil.rmtree(self.path, ignore_errors=True)
            raise UsageError(
                f"--output-dir {output}: cannot write there ({error.strerror}); choose another"
            ) from error

    @classmethod
    def reopened(cls, path: Path) -> RunDirectory:
        """Return the folder of a run that has a record already, at ``path``.

        Raises:
            UsageError: the folder cannot be written.
        """
        found = cls.__new__(cls)
        found.path = path
        try:
            found._log = (path / LOG).open("ab", buffering=0)
        except OSError as error:
            raise UsageError(f"{path}: cannot write there ({error.strerror})") from error
        return found

    def evidence_folder(self, repeat: int) -> Path:
        """Create and return the evidence folder of one repeat."""
        folder = self.path / EVIDENCE_FOLDER / f"repeat-{repeat}"
        with self._guard(folder):
            folder.mkdir()
        return folder

    @contextmanager
    def scratch_folder(self, repeat: int) -> Iterator[Path]:
        """Yield a folder for files that must not stay: whole weights, while the audit lasts."""
        folder = self.path / f".scratch-{repeat}"
        with self._guard(folder):
            folder.mkdir()
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def keep(self, file: Path) -> None:
        """Move ``file`` out of a scratch folder, to stay until the audit is finished."""
        folder = self.path / UNFINISHED
        with self._guard(folder / file.name):
            folder.mkdir(exist_ok=True)
            file.replace(folder / file.name)

    def write(self, name: str, data: bytes) -> None:
        """Write the file ``name``, relative to the folder."""
        target = self.path / name
        with self._guard(target):
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)

    def log(self, text: str) -> None:
        """Append a line to ``log.txt``, without paths of this machine."""
        with self._guard(self.path / LOG):
            self._log.write((redact_paths(text.rstrip("\n")) + "\n").encode())

    @contextmanager
    def child_log(self) -> Iterator[IO[bytes]]:
        """Yield a file for a child's output; the output is appended to the log afterwards."""
        with tempfile.TemporaryFile() as output:
            try:
                yield output
            finally:
                output.seek(0)
                text = output.read().decode(errors="replace")
                if text.strip():
                    self.log(text)

    def finish(self, record: bytes) -> None:
        """Make the run complete: write the record and move it into place in one step."""
        self.write(RECORD + ".part", record)
        with self._guard(self.path / RECORD):
            (self.path / _RESERVE).unlink(missing_ok=True)
            os.replace(self.path / (RECORD + ".part"), self.path / RECORD)
        self._log.close()

    def abandon(self, reason: str) -> None:
        """Write down why the run did not finish, even on a full disk; nothing after ``finish``."""
        if self._log.closed:
            return
        with suppress(OSError):
            (self.path / _RESERVE).unlink(missing_ok=True)
        with suppress(OSError, RunFailedError):
            self.log(f"the run did not finish: {reason}")
        self._log.close()

    @contextmanager
    def _guard(self, target: Path) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            name = target.relative_to(self.path)
            raise RunFailedError(
                f"cannot write {name} of the run directory: {error.strerror}; "
                "make room or choose another --output-dir"
            ) from error


def check_writable(output: Path) -> None:
    """Check that a run directory can be made in ``output``, before any work is done.

    Raises:
        UsageError: ``output`` is not writable.
    """
    try:
        output.mkdir(parents=True, exist_ok=True)
        probe = tempfile.mkdtemp(dir=output)
        shutil.rmtree(probe)
    except OSError as error:
        raise UsageError(
            f"--output-dir {output}: cannot write there ({error.strerror}); choose another"
        ) from error


def make_first_free(output: Path, name: str) -> Path:
    """Create and return ``output/name``, with a number if two runs start in the same second."""
    for number in range(1000):
        path = output / (f"{name}-{number}" if number else name)
        with suppress(FileExistsError):
            path.mkdir()
            return path
    raise FileExistsError(17, "a thousand runs of that name exist", str(output))
