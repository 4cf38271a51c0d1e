"""What ``llmb run`` ends with: each documented exit code, without a run."""

from __future__ import annotations

import errno
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from llmb import cli, errors, supervisor
from llmb.parallel import launch
from llmb.records.finding import Verdict
from llmb.supervisor import Finished
from tests import builders

#: In place of a run, a tiny one; what it ends in is raised by the supervisor of each test.
TINY = ("--preset", "debug", "--quiet")
Pretend = Callable[[BaseException | Finished], None]


@pytest.fixture(autouse=True)
def sigterm() -> Iterator[None]:
    """Put back what a SIGTERM does to pytest: ``main`` takes it for itself."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.fixture(autouse=True)
def run_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work in a folder where the pretended run has its directory."""
    monkeypatch.chdir(tmp_path)
    found = Path("runs/one")
    found.mkdir(parents=True)
    return found


@pytest.fixture
def ends(monkeypatch: pytest.MonkeyPatch) -> Pretend:
    """Let the supervisor end in an error, or with a finished run."""

    def pretend(outcome: BaseException | Finished) -> None:
        def run(*_: Any, **__: Any) -> Finished:
            if isinstance(outcome, BaseException):
                raise outcome
            return outcome

        monkeypatch.setattr(supervisor, "run", run)

    return pretend


@pytest.fixture
def llmb(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """Call ``llmb run`` as the console script does."""

    def call(*flags: str) -> Result:
        monkeypatch.setattr(sys, "argv", ["llmb", "run", *(flags or TINY)])
        script = click.Command("llmb", callback=cli.main)
        return CliRunner().invoke(script, standalone_mode=False)  # errors are for main alone

    return call


def finished(verdict: Verdict = Verdict.UNVERIFIED) -> Finished:
    def edit(data: dict[str, Any]) -> None:
        data["audit"]["verdict"] = verdict.value

    return Finished(builders.edited(builders.make_record(repeats=1), edit), Path("runs/one"))


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        (errors.LlmbError, 1),
        (errors.UsageError, 2),
        (errors.UnavailableError, 3),
        (errors.RunFailedError, 4),
        (errors.NotEnoughMemoryError, 4),
        (errors.AuditInvalidError, 5),
        (errors.BundleRefusedError, 6),
        (errors.RequirementError, 7),
        (errors.ConformanceError, 8),
    ],
)
def test_an_error_of_the_run_is_one_line_on_stderr_and_its_exit_code(
    ends: Pretend, llmb: Callable[..., Result], kind: type[errors.LlmbError], code: int
) -> None:
    ends(kind("the third step\x1b[2J is missing"))
    done = llmb()
    assert done.exit_code == code
    assert done.stderr == "llmb: the third step\\x1b[2J is missing\n"
    assert done.stdout == ""


@pytest.mark.parametrize("error", [KeyboardInterrupt(), click.Abort()], ids=["Ctrl-C", "abort"])
def test_an_interrupted_run_ends_in_130(
    ends: Pretend, llmb: Callable[..., Result], error: BaseException
) -> None:
    ends(error)
    done = llmb()
    assert (done.exit_code, done.stderr.strip()) == (130, "llmb: interrupted")


def test_a_sigterm_is_an_interruption_too(
    llmb: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(*_: Any, **__: Any) -> Finished:
        os.kill(os.getpid(), signal.SIGTERM)
        return finished()

    monkeypatch.setattr(supervisor, "run", run)
    assert llmb().exit_code == 130


@pytest.mark.parametrize("verdict", [v for v in Verdict if v is not Verdict.INVALID])
def test_a_finished_run_ends_in_0_whatever_its_verdict_but_invalid(
    ends: Pretend, llmb: Callable[..., Result], verdict: Verdict
) -> None:
    ends(finished(verdict))
    done = llmb()
    assert (done.exit_code, done.stderr) == (0, "")
    assert "run directory: runs/one" in done.stdout


def test_a_finished_run_has_a_page_and_says_where(
    ends: Pretend, llmb: Callable[..., Result], run_directory: Path
) -> None:
    ends(finished())
    assert "page: runs/one/report.html" in llmb().stdout
    assert "llama-1.4b train" in (run_directory / "report.html").read_text(encoding="utf-8")


def test_a_page_that_cannot_be_written_costs_one_line_and_never_the_run(
    ends: Pretend, llmb: Callable[..., Result], run_directory: Path
) -> None:
    run_directory.rmdir()
    ends(finished())
    done = llmb()
    assert done.exit_code == 0
    assert done.stderr.startswith("llmb: runs/one/report.html is not written (FileNotFoundError: ")
    assert done.stderr.endswith("; to try again: llmb show runs/one --html\n")
    assert "page:" not in done.stdout


@pytest.mark.parametrize("error", [ValueError, RecursionError, KeyError])
def test_a_page_that_cannot_be_drawn_costs_one_line_and_never_the_run(
    ends: Pretend,
    llmb: Callable[..., Result],
    monkeypatch: pytest.MonkeyPatch,
    error: type[Exception],
) -> None:
    def fail(*_: Any) -> str:
        raise error("a\x1b[2J\nb")

    monkeypatch.setattr("llmb.report.run_page.run_page", fail)
    ends(finished())
    done = llmb()
    assert (done.exit_code, done.stderr.count("\n")) == (0, 1)
    assert error.__name__ in done.stderr
    assert "\x1b" not in done.stderr


@pytest.mark.parametrize("flags", [TINY, (*TINY, "--json")], ids=["summary", "json"])
def test_an_invalid_run_is_shown_and_ends_in_5(
    ends: Pretend, llmb: Callable[..., Result], flags: tuple[str, ...]
) -> None:
    ends(finished(Verdict.INVALID))
    done = llmb(*flags)
    assert done.exit_code == 5
    assert done.stderr == "llmb: the run is INVALID, see runs/one/audit.json\n"
    assert "llama-1.4b" in done.stdout


@pytest.mark.parametrize(
    "flags",
    [
        ("--no-such-option",),
        ("--seed", "many"),
        ("--preset", "huge"),
        ("--workload", "no-such"),
        ("--workload", "{"),
        ("--within", "10m", "--preset", "debug"),
    ],
    ids=" ".join,
)
def test_flags_that_cannot_work_start_no_run_and_end_in_2(
    ends: Pretend, llmb: Callable[..., Result], flags: tuple[str, ...]
) -> None:
    ends(AssertionError("a run was started"))
    done = llmb(*flags)
    assert done.exit_code == 2, done.exception
    assert done.stderr


@pytest.mark.parametrize("code", [0, 3, 4])
def test_a_run_of_several_ranks_ends_in_what_its_ranks_end_in(
    llmb: Callable[..., Result], monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    monkeypatch.setattr(supervisor, "foresee", lambda request, world_size: None)
    monkeypatch.setattr(launch, "start", lambda world_size, arguments, run_id: code)
    assert llmb(*TINY, "--nproc", "2").exit_code == code


def test_a_run_that_is_known_not_to_fit_its_ranks_starts_none_and_ends_in_4(
    llmb: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    def foresee(request: Any, world_size: int) -> None:
        raise errors.NotEnoughMemoryError(f"{world_size} ranks do not fit")

    monkeypatch.setattr(supervisor, "foresee", foresee)
    done = llmb(*TINY, "--nproc", "2")
    assert (done.exit_code, done.stderr) == (4, "llmb: 2 ranks do not fit\n")


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
def test_a_disk_that_fills_up_while_the_result_is_written_ends_in_4(
    ends: Pretend, llmb: Callable[..., Result], monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def leave(code: int) -> None:
        raise SystemExit(code)

    monkeypatch.setattr(os, "_exit", leave)  # pytest would end with it
    ends(OSError(number, os.strerror(number)))
    done = llmb()
    assert done.exit_code == 4
    assert done.stderr == f"llmb: cannot write the output: {os.strerror(number)}\n"


@pytest.mark.parametrize("error", [BrokenPipeError(errno.EPIPE, "gone"), BrokenPipeError()])
def test_a_reader_that_goes_away_ends_it_quietly(
    ends: Pretend, llmb: Callable[..., Result], error: BrokenPipeError
) -> None:
    ends(error)
    done = llmb()
    assert (done.exit_code, done.stderr) == (1, "")
    assert isinstance(done.exception, SystemExit), "and no traceback"


def test_a_defect_keeps_its_traceback(ends: Pretend, llmb: Callable[..., Result]) -> None:
    ends(ZeroDivisionError("a defect"))
    done = llmb()
    assert (done.exit_code, type(done.exception)) == (1, ZeroDivisionError)
