"""Real child processes, tiny ones: who is listened to, and what their death is taken for."""

from __future__ import annotations

import os
import select
import socket
import stat
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

import pytest

import llmb
from llmb.errors import NotEnoughMemoryError, RunFailedError, UnavailableError
from llmb.plugin.builtin import host
from llmb.wire import child as wire
from llmb.wire import forking, messages
from llmb.wire.channel import Channel, connect
from llmb.wire.child import Child
from llmb.wire.messages import AuditRequest, Phase, Tick

#: A child in a dozen lines: nothing of llmb is imported, so that it starts in milliseconds.
PREAMBLE = """
import json, os, signal, socket, sys
where = socket.socket(socket.AF_UNIX)
def connect():
    where.connect(os.environ["LLMB_SOCKET"])
def say(**message):
    where.sendall(json.dumps(message).encode() + b"\\n")
def hello():
    connect()
    say(kind="hello", nonce=os.environ["LLMB_NONCE"], pid=os.getpid())
"""
Start = Callable[..., Child]


@pytest.fixture
def log() -> Iterator[IO[bytes]]:
    with tempfile.TemporaryFile() as output:
        yield output


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Channel]]:
    """Give every channel that is opened, and close what is left open."""
    channels: list[Channel] = []

    class Recorded(Channel):
        def __init__(self, connection: socket.socket) -> None:
            super().__init__(connection)
            channels.append(self)

    monkeypatch.setattr(wire, "Channel", Recorded)
    yield channels
    for channel in channels:
        channel.close()


@pytest.fixture
def start(tmp_path: Path, log: IO[bytes], opened: list[Channel]) -> Iterator[Start]:
    """Start a child from the text of its module; whatever is left of it is ended."""
    started = []

    def start(text: str, **environment: str) -> Child:
        (tmp_path / "tiny_child.py").write_text(PREAMBLE + text)
        child = Child("tiny_child", {"PYTHONPATH": str(tmp_path), **environment}, log)
        started.append(child)
        return child

    yield start
    for child in started:
        child.end()


def test_a_child_that_introduces_itself_is_heard_and_spoken_to(start: Start) -> None:
    child = start("hello()\nline = where.makefile().readline()\nsay(kind='phase', name=line[:7])")
    with child:
        child.send(AuditRequest(seed=1, last=False))
        assert child.expect(Phase, 10) == Phase(name='{"kind"')
        assert child.received_ns > 0


def test_a_child_gets_the_plugins_variables_and_writes_to_the_log(
    start: Start, log: IO[bytes]
) -> None:
    text = "hello()\nprint('out')\nprint('err', file=sys.stderr)\n"
    text += "say(kind='phase', name=os.environ['X'])"
    with start(text, X="42") as child:
        assert child.expect(Phase, 10) == Phase(name="42")
        with pytest.raises(RunFailedError):
            child.receive(100)
    log.seek(0)
    assert set(log.read().split()) == {b"out", b"err"}


@pytest.mark.parametrize(
    "first_line",
    [
        "say(kind='hello', nonce='guessed', pid=1)",
        "say(kind='hello', nonce='', pid=1)",
        "say(kind='phase', name='hello')",
    ],
)
def test_a_process_that_does_not_know_the_nonce_is_not_listened_to(
    start: Start, first_line: str
) -> None:
    child = start(f"connect()\n{first_line}\nwhere.recv(1)")
    with pytest.raises(RunFailedError, match="a stranger spoke on the socket of tiny_child"):
        child.begin()


@pytest.mark.parametrize(
    "first_line",
    [
        "say(kind='phase', name='hello')",
        r"where.sendall(b'garbage\n')",
    ],
)
def test_the_connection_of_a_stranger_is_closed(
    start: Start, opened: list[Channel], first_line: str
) -> None:
    child = start(f"connect()\n{first_line}\nwhere.recv(1)")
    with pytest.raises(RunFailedError):
        child.begin()
    assert opened[0]._socket.fileno() == -1


@pytest.mark.parametrize("code", [0, 1, 3, 137])
def test_a_child_that_ends_before_it_introduces_itself_is_reported_with_its_status(
    start: Start, code: int
) -> None:
    with pytest.raises(RunFailedError, match=f"tiny_child ended early with exit status {code}$"):
        start(f"os._exit({code})").begin()


def test_a_child_that_ends_between_connecting_and_introducing_itself_is_reported(
    start: Start,
) -> None:
    with pytest.raises(RunFailedError, match="exit status 5"):
        start("connect()\nos._exit(5)").begin()


@pytest.mark.parametrize("code", [0, 7])
def test_a_child_that_ends_in_the_middle_is_reported_with_its_status(
    start: Start, code: int
) -> None:
    with start(f"hello()\nos._exit({code})") as child:
        with pytest.raises(RunFailedError, match=f"ended early with exit status {code}$") as caught:
            child.receive(100)
        assert type(caught.value) is RunFailedError


@pytest.mark.parametrize("name", ["SIGTERM", "SIGSEGV", "SIGABRT"])
def test_a_child_killed_by_a_signal_is_reported_with_its_name(start: Start, name: str) -> None:
    text = "import resource; resource.setrlimit(resource.RLIMIT_CORE, (0, 0))\n"
    text += f"hello()\nsignal.signal(signal.{name}, signal.SIG_DFL)\n"
    with (
        start(f"{text}os.kill(os.getpid(), signal.{name})") as child,
        pytest.raises(RunFailedError, match=f"killed by {name}"),
    ):
        child.receive(100)


def test_a_child_killed_by_a_signal_without_a_name_is_reported(start: Start) -> None:
    with (
        start("hello()\nos.kill(os.getpid(), 40)") as child,
        pytest.raises(RunFailedError, match="40"),
    ):
        child.receive(100)


@pytest.mark.parametrize(
    "last_word",
    [
        "",
        "where.sendall(b'{')\n",
    ],
    ids=["silent", "in the middle of a message"],
)
def test_a_child_that_dies_is_noticed_though_a_helper_of_it_holds_its_socket_open(
    start: Start, monkeypatch: pytest.MonkeyPatch, last_word: str
) -> None:
    monkeypatch.setattr(wire, "_SLICE_S", 0.05)
    text = "hello()\nif os.fork() == 0:\n    signal.pause()\nsay(kind='phase', name='last')\n"
    with start(f"{text}{last_word}os._exit(6)") as child:
        child._process.wait()
        assert child.receive(100) == Phase(name="last")  # what it said before is not lost
        with pytest.raises(RunFailedError, match="ended early with exit status 6"):
            child.receive(100)


KILLED = "hello()\nos.kill(os.getpid(), signal.SIGKILL)"


def test_a_child_killed_while_the_kernel_killed_for_memory_ran_out_of_memory(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = iter([3, 4])
    monkeypatch.setattr(host, "oom_kills", lambda: next(counts))
    with start(KILLED) as child, pytest.raises(NotEnoughMemoryError, match="--batch-size"):
        child.receive(100)


@pytest.mark.parametrize("count", [3, None])
def test_a_child_killed_while_the_kernel_killed_nobody_was_killed_by_someone(
    start: Start, monkeypatch: pytest.MonkeyPatch, count: int | None
) -> None:
    monkeypatch.setattr(host, "oom_kills", lambda: count)
    with start(KILLED) as child, pytest.raises(RunFailedError, match="killed by SIGKILL") as caught:
        child.receive(100)
    assert type(caught.value) is RunFailedError


def test_another_death_while_the_kernel_killed_for_memory_is_not_blamed_on_memory(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = iter([3, 4])
    monkeypatch.setattr(host, "oom_kills", lambda: next(counts))
    with start("hello()\nos._exit(1)") as child, pytest.raises(RunFailedError) as caught:
        child.receive(100)
    assert type(caught.value) is RunFailedError


def test_a_child_that_closes_its_channel_and_lives_on_is_reported(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wire, "_EXIT_S", 0.05)
    with (
        start("hello()\nwhere.close()\nsignal.pause()") as child,
        pytest.raises(RunFailedError, match="closed its channel without finishing"),
    ):
        child.receive(100)


def test_a_failure_that_a_child_reports_is_raised_as_what_it_is(start: Start) -> None:
    text = "hello()\nsay(kind='error', error='UnavailableError', message='no device')\n"
    with (
        start(text + "where.recv(1)") as child,
        pytest.raises(UnavailableError, match=r"^no device$"),
    ):
        child.expect(Tick, 10)


def test_a_message_out_of_turn_is_a_failed_run(start: Start) -> None:
    with (
        start("hello()\nsay(kind='phase', name='x')\nwhere.recv(1)") as child,
        pytest.raises(RunFailedError, match="tiny_child said 'phase' out of turn"),
    ):
        child.expect(Tick, 10)


def test_silence_of_a_child_is_a_failed_run(start: Start) -> None:
    with (
        start("hello()\nwhere.recv(1)") as child,
        pytest.raises(RunFailedError, match="tiny_child gave no answer within 0 s"),
    ):
        child.expect(Tick, 0)


def test_what_is_sent_to_a_dead_child_is_reported_by_the_next_receive(start: Start) -> None:
    with start("hello()\nos._exit(9)") as child:
        child._process.wait()
        for _ in range(3):
            child.send(AuditRequest(seed=1, last=False))
        with pytest.raises(RunFailedError, match="exit status 9"):
            child.receive(100)


def test_leaving_a_child_ends_it_and_all_it_has_started(start: Start, tmp_path: Path) -> None:
    # Every process that lives holds the pipe open; its end is seen when the last has gone.
    pipe = tmp_path / "alive"
    os.mkfifo(pipe)
    text = "for name in ('SIGTERM', 'SIGHUP', 'SIGINT'):\n"
    text += "    signal.signal(getattr(signal, name), signal.SIG_IGN)\n"
    text += f"alive = os.open({str(pipe)!r}, os.O_WRONLY)\nhello()\nos.fork()\nsignal.pause()"
    child = start(text)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    with child:
        assert not select.select([reader], [], [], 0)[0]
    assert select.select([reader], [], [], 10)[0]
    assert os.read(reader, 1) == b""
    os.close(reader)
    assert child._process.returncode is not None


def test_a_child_is_ended_when_its_introduction_fails(start: Start) -> None:
    child = start("connect()\nsay(kind='phase', name='x')\nsignal.pause()")
    with pytest.raises(RunFailedError), child:
        pass
    assert child._process.returncode is not None


def test_a_finished_child_leaves_no_socket_behind(start: Start) -> None:
    with start("hello()") as child:
        folder = child._door._folder
        assert (folder / "socket").exists()
    assert not folder.exists()


def test_where_temporary_files_lie_too_deep_for_a_socket_it_lies_elsewhere(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / ("x" * 100)
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    with start("hello()\nsay(kind='phase', name='x')\nwhere.recv(1)") as child:
        assert child.expect(Phase, 10) == Phase(name="x")
        assert stat.S_IMODE(child._door._folder.stat().st_mode) == 0o700
    assert list(folder.iterdir()) == []
    assert not child._door._folder.exists()


def test_the_path_of_a_socket_is_short_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as short:
        folder = Path(short) / ("\N{LATIN SMALL LETTER A WITH DIAERESIS}" * 50)
        folder.mkdir()
        monkeypatch.setattr(tempfile, "tempdir", str(folder))
        made = Path(wire._socket_folder())
        made.rmdir()
    assert len(os.fsencode(made / "socket")) < 104


TELL = "import llmb\nhello()\nsay(kind='phase', name=llmb.__file__)\nwhere.recv(1)"


@pytest.fixture
def decoy(tmp_path: Path) -> Path:
    """Give a folder with another package of llmb's name in it."""
    (tmp_path / "decoy" / "llmb").mkdir(parents=True)
    (tmp_path / "decoy" / "llmb" / "__init__.py").write_text("")
    return tmp_path / "decoy"


def test_a_child_started_beside_another_llmb_runs_the_supervisors(
    start: Start, decoy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(decoy)
    with start(TELL) as child:
        assert child.expect(Phase, 10) == Phase(name=llmb.__file__)


def test_a_plugin_cannot_put_another_llmb_first_with_a_variable(
    start: Start, decoy: Path, tmp_path: Path
) -> None:
    # The supervisor's llmb lies on the path already, as it does where llmb was installed.
    with start(TELL, PYTHONPATH=f"{decoy}:{tmp_path}:{forking.ROOT}") as child:
        assert child.expect(Phase, 10) == Phase(name=llmb.__file__)


@pytest.mark.parametrize("module", ["reference_run", "replay_run", "honest_run", "worker"])
def test_torch_imports_no_vendors_package_in_a_process_without_plugins(
    monkeypatch: pytest.MonkeyPatch, log: IO[bytes], module: str
) -> None:
    alone = module in ("reference_run", "replay_run")
    tell = "import os; print(os.environ['TORCH_DEVICE_BACKEND_AUTOLOAD'])"
    monkeypatch.setenv("TORCH_DEVICE_BACKEND_AUTOLOAD", "1")
    monkeypatch.setattr(forking, "command", lambda module: [sys.executable, "-c", tell])
    child = Child(f"llmb.processes.{module}", {"TORCH_DEVICE_BACKEND_AUTOLOAD": "yes"}, log)
    child._process.wait(20)
    child.end()
    log.seek(0)
    assert log.read() == (b"0\n" if alone else b"yes\n")


def test_a_child_introduces_itself_with_the_nonce_it_was_given(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(host, "die_with_parent", lambda: None)
    path = str(tmp_path / "socket")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen(1)
        monkeypatch.setenv("LLMB_SOCKET", path)
        monkeypatch.setenv("LLMB_NONCE", "secret")
        channel = connect()
        accepted = listener.accept()[0]
        message = messages.decode(accepted.recv(1000))
        assert message == messages.Hello(nonce="secret", pid=os.getpid())
        accepted.close()
        channel.close()


def test_several_silent_children_are_waited_for_at_the_same_time(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    left_s: list[float | None] = []
    receive = Child.receive

    def noted(child: Child, timeout_s: float | None = None) -> messages.Message | None:
        left_s.append(timeout_s)
        return receive(child, timeout_s)

    monkeypatch.setattr(Child, "receive", noted)
    children = [start("hello()\nsignal.pause()") for _ in range(3)]
    for child in children:
        child.begin()
    for child in children:
        child.send(AuditRequest(seed=1, last=False))
    for child in children:
        with pytest.raises(RunFailedError, match="gave no answer within 1 s"):
            child.expect(Tick, 1)
    assert left_s[1:] == [0.0, 0.0], "their second was over with that of the first"


def test_an_answer_that_came_while_another_child_was_waited_for_is_not_too_late(
    start: Start,
) -> None:
    child = start("hello()\nsay(kind='phase', name='x')\nwhere.recv(1)")
    with child:
        while not child._open().pending():
            time.sleep(0.01)
        time.sleep(0.3)
        assert child.expect(Phase, 0.2) == Phase(name="x")


def test_every_answer_of_a_child_gives_it_the_whole_time_again(start: Start) -> None:
    text = "import time\nhello()\n"
    text += "for name in 'abcdefgh':\n    time.sleep(0.25)\n    say(kind='phase', name=name)\n"
    with start(text + "where.recv(1)") as child:
        for name in "abcdefgh":
            assert child.expect(Phase, 1.8) == Phase(name=name)
