"""The process of ``llmb.run`` and its reports, with programs in place of the command."""

from __future__ import annotations

import os
import signal
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from llmb import errors
from llmb.api import calling
from llmb.endings import Interrupted
from llmb.supervision.run_phases import Silent

#: How a program in place of the command speaks: a JSON line for each message.
_PRELUDE = """
import json, os, signal, socket, sys, time
from urllib.parse import quote
os.environ.pop("LLMB_CALLED")
caller = socket.socket(fileno=os.dup(0))
def say(kind, **fields):
    if "path" in fields:
        fields["path"] = quote(os.fsencode(os.path.join(os.environ["FOLDER"], fields["path"])))
    caller.sendall(json.dumps({"kind": kind, **fields}).encode() + b"\\n")
"""


class Heard(Silent):
    """What a display was shown."""

    def __init__(self) -> None:
        self.phases: list[str] = []
        self.notes: list[str] = []

    def phase(self, name: str) -> None:
        self.phases.append(name)

    def note(self, text: str) -> None:
        self.notes.append(text)


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """Call a program of these lines instead of the command."""

    monkeypatch.setenv("FOLDER", str(tmp_path))

    def made(lines: str, display: Silent | None = None, words: tuple[str, ...] = ()) -> Path:
        monkeypatch.setattr(calling, "_PROGRAM", _PRELUDE + textwrap.dedent(lines))
        return calling.run_directory_of(words, display or Silent())

    return made


def test_a_finished_run_gives_its_directory_in_the_output_folder(call, tmp_path) -> None:
    assert call("say('recorded', path='a')") == tmp_path / "a"


def test_the_program_gets_the_words_of_the_command(call, tmp_path) -> None:
    found = call("say('recorded', path='+'.join(sys.argv[2:]))", words=("--nproc=2", "-Oa=b c"))
    assert found.name == "run+--nproc=2+-Oa=b c"


def test_a_folder_of_any_name_is_found_again(call, monkeypatch, tmp_path) -> None:
    odd = os.fsdecode(b"a %41\n\xff")
    assert call(f"say('recorded', path={odd!r})").name == odd


def test_progress_reaches_the_display(call) -> None:
    heard = Heard()
    call(
        """
        say("shown-text", what="phase", text="timing")
        say("shown-silence", who="worker", since_s=61, busy_cores=1, on_cpu=True, step=2,
            compiling_min=None)
        say("shown-text", what="note", text="slow")
        say("recorded", path="a")
        """,
        heard,
    )
    assert (heard.phases, heard.notes) == (["timing"], ["slow"])


CLASSES = [
    kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, errors.LlmbError)
]


def test_every_error_of_the_command_is_raised_with_its_class_and_exit_code(call) -> None:
    for kind in CLASSES:
        with pytest.raises(errors.LlmbError, match=r"^why$") as found:
            call(f"say('error', error={kind.__name__!r}, message='why'); sys.exit(9)")
        assert type(found.value) is kind


def test_the_error_of_an_invalid_run_has_the_run_directory(call, tmp_path) -> None:
    with pytest.raises(errors.AuditInvalidError) as found:
        call(
            """
            say("recorded", path="a")
            say("error", error="AuditInvalidError", message="the run is INVALID")
            sys.exit(5)
            """
        )
    assert found.value.run_dir == tmp_path / "a"


def test_of_several_ranks_the_first_error_counts(call) -> None:
    with pytest.raises(errors.NotEnoughMemoryError, match="rank 1 has too little"):
        call(
            """
            say("error", error="NotEnoughMemoryError", message="rank 1 has too little")
            say("error", error="RunFailedError", message="another rank is gone")
            sys.exit(4)
            """
        )


def test_a_process_that_was_killed_is_a_failed_run(call) -> None:
    with pytest.raises(errors.RunFailedError, match="ended by SIGKILL"):
        call("os.kill(os.getpid(), signal.SIGKILL)")


def test_a_defect_is_told_by_the_last_line_of_its_traceback(call) -> None:
    with pytest.raises(errors.LlmbError, match="exit code 1: ValueError: odd") as found:
        call("raise ValueError('odd')")
    assert type(found.value) is errors.LlmbError


def test_a_process_that_was_left_behind_holds_nobody_up(call, tmp_path) -> None:
    """A rank that outlives its launcher would keep the channel open."""
    found = call(
        """
        if not (child := os.fork()):
            time.sleep(60)
        say("recorded", path=str(child))
        os._exit(0)
        """
    )
    os.kill(int(found.name), signal.SIGKILL)
    assert found.parent == tmp_path


# -- interrupts -------------------------------------------------------------------------------

#: Ends by SIGINT as the command does, half a second later.
_INTERRUPTED = """
def end(*_):
    time.sleep(0.5)
    say("error", error="Interrupted", message=f"interrupted by SIGINT: kept: {os.getpid()}")
    sys.exit(130)
signal.signal(signal.SIGINT, end)
say("shown-text", what="phase", text="begun")
time.sleep(60)
"""


class Interrupting(Silent):
    """Interrupts this process, and no other, when the run has begun."""

    def phase(self, name: str) -> None:
        os.kill(os.getpid(), signal.SIGINT)


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Python's own handler, in place of a handler that an earlier test has left."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_an_interrupt_is_passed_on_and_told_when_the_process_has_ended(call) -> None:
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt, match="interrupted by SIGINT: kept: ") as found:
        call(_INTERRUPTED, Interrupting())
    assert isinstance(found.value, Interrupted)
    assert not psutil.pid_exists(int(str(found.value).rpartition(" ")[2]))
    assert signal.getsignal(signal.SIGINT) is before


def test_an_error_of_the_calling_program_ends_the_process(call, tmp_path) -> None:
    class Odd(Silent):
        def phase(self, name: str) -> None:
            raise ZeroDivisionError(name)

    with pytest.raises(ZeroDivisionError) as found:
        call("say('shown-text', what='phase', text=str(os.getpid())); time.sleep(60)", Odd())
    assert not psutil.pid_exists(int(str(found.value)))


def test_a_run_may_be_called_from_a_thread(call, tmp_path) -> None:
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(call, "say('recorded', path='a')").result() == tmp_path / "a"


def test_two_runs_of_a_program_take_turns(call) -> None:
    heard = Heard()
    lines = "began = time.time(); time.sleep(0.3); say('recorded', path=f'{began} {time.time()}')"
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(call, lines, heard)
        while not calling._turn.locked():
            time.sleep(0.001)
        second = pool.submit(call, lines, heard)
    spans = [[*map(float, one.result().name.split())] for one in (first, second)]
    assert spans[0][1] <= spans[1][0]
    assert heard.phases == ["waiting for another llmb.run of this program"]


def test_the_turn_is_over_after_an_error(call) -> None:
    with pytest.raises(errors.LlmbError):
        call("sys.exit(1)")
    assert not calling._turn.locked()


def test_the_calling_program_keeps_its_state(call) -> None:
    def state() -> object:
        signals = [signal.getsignal(number) for number in signal.valid_signals()]
        return dict(os.environ), os.getcwd(), signals, threading.active_count(), sys.path[:]

    before = state()
    call("os.chdir('/'); say('recorded', path='a')")
    assert state() == before


def test_ranks_of_torchrun_are_told_to_use_the_command(call, monkeypatch) -> None:
    for name, value in {
        "RANK": "0",
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "a",
        "MASTER_PORT": "1",
    }.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(errors.UsageError, match="torchrun --nproc-per-node 2 -m llmb run"):
        call("say('recorded', path='a')")
