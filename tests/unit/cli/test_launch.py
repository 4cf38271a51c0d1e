"""``llmb launch``: a job's file on stdout, or in a file that was not there."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from llmb.cli import launch
from llmb.errors import UsageError

JOB = ("slurm", "--", "run", "--preset", "debug")


def call(*words: object) -> str:
    arguments = [str(word) for word in words]
    return CliRunner().invoke(launch.command, arguments, catch_exceptions=False).stdout


def test_a_file_that_is_named_is_written_once(tmp_path: Path) -> None:
    file = tmp_path / "job.sh"
    assert call("--print", "slurm", "--output", file, "--", *JOB[2:]) == f"written: {file}\n"
    text = file.read_text()
    assert text == call("--print", *JOB)
    with pytest.raises(UsageError, match="it is there already"):
        call("--print", "slurm", "--output", file, "--", *JOB[2:])
    assert file.read_text() == text
