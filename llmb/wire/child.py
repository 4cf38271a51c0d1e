"""Starts a child process of a run, and holds the supervisor's end of the channel.

Example: ``with Child(module, environment, log) as child:`` starts a child, connects, and ends the
child after the body.
"""

from __future__ import annotations

import os
import secrets
import select
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO

import llmb
import llmb.errors
from llmb import clock, endings
from llmb.errors import LlmbError, NotEnoughMemoryError, RunFailedError
from llmb.plugin.builtin import host
from llmb.wire import forking
from llmb.wire.address import WorkerAddress, child_environment
from llmb.wire.channel import Channel, ChannelClosedError, M
from llmb.wire.forking import Forked
from llmb.wire.messages import Failure, Hello, Message

_MAX_SOCKET_PATH = 100  # sun_path holds 104 bytes on macOS, 108 on Linux
_CONNECT_S = 300.0  # importing torch from a cold network file system takes minutes
_EXIT_S = 20.0
_SLICE_S = 1.0  # interval of checks whether a silent child lives
_FAREWELL_S = 0.2
#: A scheduler signals all processes of a job within 0.5 s.
_ECHO_S = 0.5


class Child:
    """A child process with its channel; leaving the context ends the child at any point."""

    def __init__(self, module: str, environment: Mapping[str, str], log: IO[bytes]) -> None:
        """Start ``module`` as a process; stdout and stderr of the child go to ``log``.

        The child leads a new session. Ctrl-C therefore reaches the supervisor only, and the
        supervisor ends the child with all descendants.
        """
        self.module = module
        self._oom_kills = host.oom_kills()
        self._started_ns = self._heard_ns = clock.now_ns()
        #: The listening socket for a spawned process; a forked process starts with a connection.
        self._door: _Door | None = None
        self._channel: Channel | None = None
        self._process: Forked | subprocess.Popen[bytes]
        forked = forking.start(module, environment, log)
        if forked is not None:
            self._process, connection = forked
            self._unmet: socket.socket | None = connection
            return
        self._unmet, self._door = None, _Door()
        self._process = subprocess.Popen(
            forking.command(module),
            env=child_environment(self._door.address, forking.variables_for(module, environment)),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )

    def __enter__(self) -> Child:
        """Wait for the child's ``Hello``."""
        try:
            self.begin()
        except BaseException:
            self.end()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """End the child."""
        self.end()

    @property
    def pid(self) -> int:
        """Process id of the child."""
        return self._process.pid

    @property
    def received_ns(self) -> int:
        """Arrival time of the latest message, in ns of the supervisor's raw clock."""
        return self._open().received_ns

    def send(self, message: Message) -> None:
        """Send ``message``; if the child has ended, the next ``receive`` raises."""
        self._heard_ns = clock.now_ns()
        try:
            self._open().send(message)
        except ChannelClosedError:
            return

    def receive(self, timeout_s: float | None = None) -> Message | None:
        """Return the next message, None after ``timeout_s`` without a message.

        Raises:
            LlmbError: the child sent a ``Failure``, or ended without a message.
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
        """Tell whether the child has ended; a descendant may still hold the socket open."""
        return self._process.poll() is not None and not self._open().pending()

    def expect(self, kind: type[M], timeout_s: float) -> M:
        """Return the next message, checked to be a ``kind``.

        The time starts at the last message in either direction. Several children can therefore be
        awaited one by one.

        Raises:
            RunFailedError: a message of a different kind, or no message within ``timeout_s``.
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
        channel = Channel(self._connection())
        try:
            hello = channel.receive(_CONNECT_S)
        except ChannelClosedError:
            channel.close()
            raise self._obituary() from None
        except BaseException:
            channel.close()
            raise
        nonce = self._door.address.nonce if self._door else ""
        if not isinstance(hello, Hello) or not secrets.compare_digest(hello.nonce, nonce):
            channel.close()
            raise RunFailedError(f"a stranger spoke on the socket of {self.module}")
        return channel

    def _connection(self) -> socket.socket:
        if self._unmet is not None:
            connection, self._unmet = self._unmet, None
            return connection
        assert self._door is not None
        deadline = self._started_ns + int(_CONNECT_S * 1e9)
        while not select.select([self._door.listener], [], [], 0.1)[0]:
            if self._process.poll() is not None:
                raise self._obituary()
            if clock.now_ns() > deadline:
                raise RunFailedError(f"{self.module} did not start within {_CONNECT_S:.0f} s")
        return self._door.listener.accept()[0]

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
            name = _signal_name(-code)
            if name in endings.STOPPING:
                time.sleep(_ECHO_S)  # the same signal interrupts this process here
            return RunFailedError(f"{self.module} was killed by {name}")
        return RunFailedError(f"{self.module} ended early with exit status {code}")

    def begin(self) -> None:
        """Wait for the child's ``Hello``.

        Raises:
            RunFailedError: no ``Hello``, or a ``Hello`` with a wrong nonce.
        """
        self._channel = self._accept()
        self._heard_ns = clock.now_ns()

    def end(self) -> None:
        """End the child, its descendants, and the socket."""
        if self._channel is not None:
            self._channel.close()
        if self._unmet is not None:
            self._unmet.close()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_FAREWELL_S)
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)  # the child's session, with descendants
        self._process.wait()
        if self._door is not None:
            self._door.close()


class _Door:
    """A listening socket in a private folder, for a connection from a single process."""

    def __init__(self) -> None:
        """Listen in a new private folder."""
        self._folder = Path(_socket_folder())
        self.address = WorkerAddress(
            socket_path=str(self._folder / "socket"), nonce=secrets.token_hex(16)
        )
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(self.address.socket_path)
        self.listener.listen(1)

    def close(self) -> None:
        """Close the socket and remove the folder."""
        self.listener.close()
        shutil.rmtree(self._folder, ignore_errors=True)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal has a number only
        return f"signal {number}"


def _socket_folder() -> str:
    """Return a new private folder with a path of a length that a Unix socket allows."""
    folder = tempfile.mkdtemp(prefix="llmb-")
    if len(os.fsencode(folder)) + len("/socket") > _MAX_SOCKET_PATH:
        os.rmdir(folder)
        folder = tempfile.mkdtemp(prefix="llmb-", dir="/tmp")
    return folder


def _error(failure: Failure) -> LlmbError:
    kind = getattr(llmb.errors, failure.error, RunFailedError)
    known = isinstance(kind, type) and issubclass(kind, LlmbError)
    return kind(failure.message) if known else RunFailedError(failure.message)
