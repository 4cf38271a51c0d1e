"""JSON lines over a Unix socket: how supervisor and children talk, and how children are started.

The socket's path and a nonce travel in the environment; a child that does not know the nonce is
not listened to.
"""

from __future__ import annotations

import gc
import os
import secrets
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import IO, TypeVar

import llmb
import llmb.errors
from llmb.config import WorkerAddress, child_environment, worker_address
from llmb.errors import LlmbError, NotEnoughMemoryError, RunFailedError, is_out_of_memory
from llmb.measure import clock
from llmb.plugin.builtin import host
from llmb.wire import messages
from llmb.wire.messages import Failure, Hello, Message

#: ``python -m`` would look in the working folder first, and a child started there could run another
#: llmb than its supervisor. This one is found where the supervisor found it, and listens to all
#: code that is run from there on. Until ``serve`` nothing but modules is made: to look for garbage
#: among them would take a sixth of the time.
_BOOT = """
import gc, runpy, sys
gc.disable()
module, root = sys.argv[1:]
sys.path = [root, *(place for place in sys.path if place)]
import llmb
from llmb.observe.executed_code import listen
listen()
del sys.path[0]
runpy.run_module(module, run_name="__main__", alter_sys=True)
"""
_ROOT = Path(llmb.__file__).resolve().parent.parent
_MAX_SOCKET_PATH = 100  # sun_path holds 104 bytes on macOS, 108 on Linux
_MAX_LINE = 16 * 2**20
_CONNECT_S = 300.0  # importing torch from a cold network file system takes minutes
_EXIT_S = 20.0
_SLICE_S = 1.0  # how often a silent child is looked after
_FAREWELL_S = 0.2
_MOST_CHARACTERS = 2000  # of an error's message: its traceback is in the log
M = TypeVar("M")


class ChannelClosedError(Exception):
    """The other end is gone."""


class Channel:
    """One end of the stream of messages."""

    __slots__ = ("_buffer", "_socket", "received_ns")

    def __init__(self, connection: socket.socket) -> None:
        """Talk over ``connection``, which the channel owns from here on."""
        self._socket = connection
        self._buffer = bytearray()
        #: When the bytes of the latest message came in, on the raw clock.
        self.received_ns = 0

    def send(self, message: Message) -> None:
        """Write ``message``.

        Raises:
            ChannelClosedError: nobody is reading any more.
        """
        try:
            self._socket.sendall(messages.encode(message))
        except OSError as error:
            raise ChannelClosedError(str(error)) from error

    def receive(self, timeout_s: float | None = None) -> Message | None:
        """Return the next message, or None when none came within ``timeout_s``.

        Raises:
            ChannelClosedError: the other end is gone.
            RunFailedError: what came is not a message.
        """
        deadline = None if timeout_s is None else clock.now_ns() + int(timeout_s * 1e9)
        while b"\n" not in self._buffer:
            if deadline is not None:  # of the message, not of its next byte
                left_s = max(0.0, (deadline - clock.now_ns()) / 1e9)
                if not select.select([self._socket], [], [], left_s)[0]:
                    return None
            try:
                chunk = self._socket.recv(65536)
            except OSError as error:
                raise ChannelClosedError(str(error)) from error
            self.received_ns = clock.now_ns()
            if not chunk:
                raise ChannelClosedError("closed by the other process")
            self._buffer += chunk
            if len(self._buffer) > _MAX_LINE:
                raise RunFailedError("a message between processes is too long: a defect of llmb")
        line, _, self._buffer = self._buffer.partition(b"\n")
        try:
            return messages.decode(bytes(line))
        except ValueError as error:
            raise RunFailedError(f"a process sent an unreadable message: {error}") from error

    def pending(self) -> bool:
        """Tell whether something can be read without waiting."""
        return b"\n" in self._buffer or bool(select.select([self._socket], [], [], 0)[0])

    def expect(self, kind: type[M], timeout_s: float | None = None) -> M:
        """Return the next message, which must be a ``kind``.

        Raises:
            RunFailedError: another message, or none within ``timeout_s``.
        """
        message = self.receive(timeout_s)
        if message is None:
            raise RunFailedError(f"no {kind.__name__} came within {timeout_s:.0f} s")
        if not isinstance(message, kind):
            raise RunFailedError(f"{message.kind!r} came where {kind.__name__} was due")
        return message

    def close(self) -> None:
        """Close this end."""
        self._socket.close()


def connect() -> Channel:
    """Return the child's end of the channel, introduced to the supervisor."""
    address = worker_address()
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(address.socket_path)
    channel = Channel(connection)
    host.die_with_parent()
    channel.send(Hello(nonce=address.nonce, pid=os.getpid()))
    return channel


def serve(work: Callable[[Channel], None]) -> None:
    """Run a child: connect, do ``work``, and report whatever goes wrong as one ``Failure``."""
    gc.enable()
    channel = connect()
    try:
        work(channel)
    except ChannelClosedError:
        return  # the supervisor is gone, so nobody is left to tell
    except LlmbError as error:
        if error.__cause__ is not None:  # a hook's own traceback belongs into log.txt
            traceback.print_exc()
        ours = (k.__name__ for k in type(error).__mro__ if k.__module__ == llmb.errors.__name__)
        channel.send(Failure(error=next(ours), message=_sayable(str(error))))
    except Exception as error:  # plugin code may raise anything; the traceback goes to log.txt
        traceback.print_exc()
        kind = NotEnoughMemoryError if is_out_of_memory(error) else RunFailedError
        first_line = (str(error).splitlines() or [""])[0]
        text = _sayable(f"{type(error).__name__}: {first_line}")
        channel.send(Failure(error=kind.__name__, message=text))
    finally:
        # Python looks for garbage among all modules as it ends, which with torch takes longer than
        # the supervisor waits.
        gc.freeze()


def _sayable(text: str) -> str:
    """Return ``text`` as a message can carry it: no half characters, and not without end."""
    text = text.encode(errors="backslashreplace").decode()
    return text if len(text) <= _MOST_CHARACTERS else f"{text[:_MOST_CHARACTERS]}..."


class Child:
    """A child process with its channel; leaving the context ends it, whatever it is doing."""

    def __init__(self, module: str, environment: Mapping[str, str], log: IO[bytes]) -> None:
        """Start ``module`` as a process; its stdout and stderr go to ``log``.

        The child is the leader of a session of its own: Ctrl-C reaches the supervisor alone, which
        then ends the child and all its descendants.
        """
        self.module = module
        self._folder = Path(_socket_folder())
        address = WorkerAddress(
            socket_path=str(self._folder / "socket"), nonce=secrets.token_hex(16)
        )
        self._nonce = address.nonce
        self._oom_kills = host.oom_kills()
        self._started_ns = self._heard_ns = clock.now_ns()
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(address.socket_path)
        self._listener.listen(1)
        self._process = subprocess.Popen(
            [sys.executable, "-c", _BOOT, module, str(_ROOT)],
            env=child_environment(address, environment),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        self._channel: Channel | None = None

    def __enter__(self) -> Child:
        """Wait until the child has introduced itself."""
        try:
            self.begin()
        except BaseException:
            self.end()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End the child."""
        self.end()

    @property
    def pid(self) -> int:
        """Process id of the child."""
        return self._process.pid

    @property
    def received_ns(self) -> int:
        """When the latest message came in, on the supervisor's raw clock."""
        return self._open().received_ns

    def send(self, message: Message) -> None:
        """Send ``message``; a child that is gone is reported by the next ``receive``."""
        self._heard_ns = clock.now_ns()
        try:
            self._open().send(message)
        except ChannelClosedError:
            return

    def receive(self, timeout_s: float | None = None) -> Message | None:
        """Return the next message, None after ``timeout_s`` without one.

        Raises:
            LlmbError: the child said that it failed, or died without a word.
        """
        deadline = None if timeout_s is None else clock.now_ns() + int(timeout_s * 1e9)
        message: Message | None = None
        try:
            while message is None:
                left_s = _SLICE_S if deadline is None else (deadline - clock.now_ns()) / 1e9
                message = self._open().receive(min(_SLICE_S, max(0.0, left_s)))
                if message is None and self._is_gone():
                    raise self._obituary()
                if left_s <= 0:
                    break
        except ChannelClosedError:
            raise self._obituary() from None
        if message is not None:
            self._heard_ns = clock.now_ns()
        if isinstance(message, Failure):
            raise _error(message)
        return message

    def _is_gone(self) -> bool:
        """Tell whether the child is dead, though something it forked may hold its socket open."""
        return self._process.poll() is not None and not self._open().pending()

    def expect(self, kind: type[M], timeout_s: float) -> M:
        """Return the next message, which must be a ``kind``.

        Raises:
            RunFailedError: another message, or none within ``timeout_s`` of what was last said by
                either side, so that several children can be waited for one after the other.
        """
        waited_s = (clock.now_ns() - self._heard_ns) / 1e9
        message = self.receive(max(0.0, timeout_s - waited_s))
        if message is None:
            raise RunFailedError(f"{self.module} gave no answer within {timeout_s:.0f} s")
        if not isinstance(message, kind):
            raise RunFailedError(f"{self.module} said {message.kind!r} out of turn")
        return message

    def _open(self) -> Channel:
        assert self._channel is not None
        return self._channel

    def _accept(self) -> Channel:
        deadline = self._started_ns + int(_CONNECT_S * 1e9)
        while not select.select([self._listener], [], [], 0.1)[0]:
            if self._process.poll() is not None:
                raise self._obituary()
            if clock.now_ns() > deadline:
                raise RunFailedError(f"{self.module} did not start within {_CONNECT_S:.0f} s")
        channel = Channel(self._listener.accept()[0])
        try:
            hello = channel.receive(_CONNECT_S)
        except ChannelClosedError:
            channel.close()
            raise self._obituary() from None
        except BaseException:
            channel.close()
            raise
        if not isinstance(hello, Hello) or not secrets.compare_digest(hello.nonce, self._nonce):
            channel.close()
            raise RunFailedError(f"a stranger spoke on the socket of {self.module}")
        return channel

    def _obituary(self) -> RunFailedError:
        try:
            code = self._process.wait(_EXIT_S)
        except subprocess.TimeoutExpired:
            return RunFailedError(f"{self.module} closed its channel without finishing")
        if code == -signal.SIGKILL and host.oom_kills() != self._oom_kills:
            return NotEnoughMemoryError(
                f"{self.module} was killed by the kernel's out-of-memory killer: use a smaller "
                "--batch-size, or end other programs"
            )
        if code < 0:
            return RunFailedError(f"{self.module} was killed by {_signal_name(-code)}")
        return RunFailedError(f"{self.module} ended early with exit status {code}")

    def begin(self) -> None:
        """Wait until the child has introduced itself.

        Raises:
            RunFailedError: it did not, or somebody else did.
        """
        self._channel = self._accept()
        self._heard_ns = clock.now_ns()

    def end(self) -> None:
        """End the child, its descendants, and the socket."""
        if self._channel is not None:
            self._channel.close()
        self._listener.close()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_FAREWELL_S)
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)  # its session: it and its descendants
        self._process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal has a number only
        return f"signal {number}"


def _socket_folder() -> str:
    """Return a new private folder with a path short enough for a socket in it."""
    folder = tempfile.mkdtemp(prefix="llmb-")
    if len(os.fsencode(folder)) + len("/socket") > _MAX_SOCKET_PATH:
        os.rmdir(folder)
        folder = tempfile.mkdtemp(prefix="llmb-", dir="/tmp")
    return folder


def _error(failure: Failure) -> LlmbError:
    kind = getattr(llmb.errors, failure.error, RunFailedError)
    known = isinstance(kind, type) and issubclass(kind, LlmbError)
    return kind(failure.message) if known else RunFailedError(failure.message)
