"""JSON lines over a Unix socket between supervisor and children, and the frame of a child.

The path of the socket and a nonce are in the child's environment. The supervisor refuses a child
without the correct nonce. Example of a line: ``{"kind":"done"}``.
"""

from __future__ import annotations

import gc
import os
import select
import socket
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

import llmb
import llmb.errors
from llmb import clock
from llmb.endings import is_out_of_space
from llmb.errors import (
    LlmbError,
    NotEnoughMemoryError,
    NotEnoughSpaceError,
    RunFailedError,
    is_out_of_memory,
)
from llmb.plugin.builtin import host
from llmb.wire import messages
from llmb.wire.address import worker_address
from llmb.wire.messages import Failure, Hello, Message

_MAX_LINE = 16 * 2**20
_MOST_CHARACTERS = 2000  # of an error's message; the traceback is in the log
M = TypeVar("M")


class ChannelClosedError(Exception):
    """The process at the remote end has closed the channel or ended."""


@dataclass(slots=True, eq=False)
class Channel:
    """A local end of the stream of messages."""

    #: The socket of the channel; ``close`` closes the socket.
    _socket: socket.socket
    #: Arrival time of the latest message's bytes, in ns of the raw clock.
    received_ns: int = 0
    _buffer: bytearray = field(default_factory=bytearray)

    def send(self, message: Message) -> None:
        """Write ``message``.

        Raises:
            ChannelClosedError: the remote end is closed.
        """
        try:
            self._socket.sendall(messages.encode(message))
        except OSError as error:
            raise ChannelClosedError(str(error)) from error

    def receive(self, timeout_s: float | None = None) -> Message | None:
        """Return the next message, or None without a message within ``timeout_s``.

        Raises:
            ChannelClosedError: the remote end is closed.
            RunFailedError: the received line is not a message, or is longer than 16 MiB.
        """
        deadline = None if timeout_s is None else clock.now_ns() + int(timeout_s * 1e9)
        while b"\n" not in self._buffer:
            if deadline is not None:  # for the full message, not for the next byte
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
                raise RunFailedError(
                    f"a message between processes is longer than {_MAX_LINE >> 20} MB: let the "
                    "plugin's hooks answer with less (llmb_describe_system, for example)"
                )
        line, _, self._buffer = self._buffer.partition(b"\n")
        try:
            return messages.decode(bytes(line))
        except ValueError as error:
            raise RunFailedError(f"a process sent an unreadable message: {error}") from error

    def pending(self) -> bool:
        """Tell whether data can be read without waiting."""
        return b"\n" in self._buffer or bool(select.select([self._socket], [], [], 0)[0])

    def expect(self, kind: type[M], timeout_s: float | None = None) -> M:
        """Return the next message, checked to be a ``kind``. Example: ``expect(Ready)``.

        Raises:
            RunFailedError: a message of a different kind, or no message within ``timeout_s``.
        """
        message = self.receive(timeout_s)
        if message is None:
            raise RunFailedError(f"no {kind.__name__} came within {timeout_s:.0f} s")
        if not isinstance(message, kind):
            raise RunFailedError(f"{message.kind!r} came where {kind.__name__} was due")
        return message

    def close(self) -> None:
        """Close the local end."""
        self._socket.close()


def connect() -> Channel:
    """Return the child's end of the channel, after sending ``Hello`` to the supervisor."""
    address = worker_address()
    if address.descriptor is not None:
        connection = socket.socket(fileno=address.descriptor)
    else:
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(address.socket_path)
    channel = Channel(connection)
    host.die_with_parent()
    channel.send(Hello(nonce=address.nonce, pid=os.getpid()))
    return channel


def serve(work: Callable[[Channel], None]) -> None:
    """Run a child: connect, do ``work``, and report any error as a ``Failure``."""
    gc.freeze()  # skip imported modules in garbage collections: scanning all takes 0.4 s
    gc.enable()
    channel = connect()
    try:
        work(channel)
    except ChannelClosedError:
        return  # the supervisor has ended: no process reads a report
    except LlmbError as error:
        if error.__cause__ is not None:  # a hook's traceback goes to log.txt
            traceback.print_exc()
        ours = (k.__name__ for k in type(error).__mro__ if k.__module__ == llmb.errors.__name__)
        channel.send(Failure(error=next(ours), message=_sayable(str(error))))
    except Exception as error:  # plugin code may raise anything; the traceback goes to log.txt
        traceback.print_exc()
        kind: type[LlmbError] = RunFailedError
        if is_out_of_memory(error):
            kind = NotEnoughMemoryError
        elif is_out_of_space(error):
            kind = NotEnoughSpaceError
        first_line = (str(error).splitlines() or [""])[0]
        text = _sayable(f"{type(error).__name__}: {first_line}")
        channel.send(Failure(error=kind.__name__, message=text))
    finally:
        # Python collects garbage among all modules at exit. With torch the collection takes longer
        # than the supervisor waits.
        gc.freeze()


def _sayable(text: str) -> str:
    """Return ``text`` for a message: surrogates escaped, and at most 2,000 characters."""
    text = text.encode(errors="backslashreplace").decode()
    return text if len(text) <= _MOST_CHARACTERS else f"{text[:_MOST_CHARACTERS]}..."
