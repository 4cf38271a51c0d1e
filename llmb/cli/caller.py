"""The way back from a command to the program that called it: ``llmb.run`` in Python (``llmb.api``).

Standard input of a called process is a socket. The process reports progress, run directory and
error, and ends when the calling program has ended: nobody would read the result.
"""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from llmb import endings

if TYPE_CHECKING:
    from llmb.supervision.forecast import Forecast
    from llmb.supervision.silence import Silence
    from llmb.wire.channel import Channel
    from llmb.wire.messages import Fence, Message, Phase, Tick

#: Name of an interruption in the message ``Failure``, whose other names are of ``llmb.errors``.
INTERRUPTED = "Interrupted"
_STDIN = 0


@dataclass
class _Caller:
    """The channel to the calling program; None for a command of a user."""

    channel: Channel | None = None


_caller = _Caller()


def meet() -> None:
    """Take standard input as the channel to the calling program, if a program called.

    For the first lines of a process: the process of ``llmb.run``, and each rank started by it.
    """
    from llmb.wire.address import take_called

    if not take_called():
        return
    from llmb.wire.channel import Channel

    connection = socket.socket(fileno=os.dup(_STDIN))
    _caller.channel = Channel(connection)
    endings.heed_interrupts()
    threading.Thread(target=_end_with, args=(connection,), name="llmb-caller", daemon=True).start()


def _end_with(connection: socket.socket) -> None:
    """Wait for the end of the calling program, which sends nothing; then end this process."""
    with suppress(OSError):
        while connection.recv(1):
            pass
    os.kill(os.getpid(), signal.SIGTERM)


def recorded(run_directory: Path) -> None:
    """Report a run with a record."""
    if _caller.channel is not None:
        from llmb.wire.messages import Recorded

        _send(Recorded(path=quote(os.fsencode(run_directory.absolute()))))


def failed(error: str, line: str) -> None:
    """Report the end of the command by ``error``, a class of ``llmb.errors``, and its ``line``."""
    if _caller.channel is not None:
        from llmb.wire.messages import Failure

        _send(Failure(error=error, message=line.encode(errors="backslashreplace").decode()))


@contextmanager
def ranks() -> Iterator[None]:
    """Let ranks that are started inside report to the calling program, if a program called."""
    from llmb.wire.address import ranks_called

    if _caller.channel is None:
        yield
        return
    with ranks_called():
        yield


def _send(message: Message) -> None:
    from llmb.wire.channel import ChannelClosedError

    if _caller.channel is not None:
        with suppress(ChannelClosedError):  # this process is about to end
            _caller.channel.send(message)


class Relayed:
    """Shows a run's progress in the calling program."""

    def foresee(self, forecast: Forecast) -> None:
        """Show nothing: a forecast changes in this process, and is not sent."""

    def phase(self, name: str) -> None:
        """Report a phase."""
        from llmb.wire.messages import TextShown

        _send(TextShown(what="phase", text=name))

    def stream(self, steps: int, tokens_per_step: int, label: str) -> None:
        """Report a stream of steps."""
        from llmb.wire.messages import StreamShown

        _send(StreamShown(steps=steps, tokens_per_step=tokens_per_step, label=label))

    def note(self, text: str) -> None:
        """Report a note."""
        from llmb.wire.messages import TextShown

        _send(TextShown(what="note", text=text))

    def message(self, message: Phase | Tick | Fence | Silence | None) -> None:
        """Report a message of a worker, or a silence; the calling program knows the time."""
        from llmb.supervision.silence import Silence
        from llmb.wire.messages import SilenceShown

        if isinstance(message, Silence):
            _send(SilenceShown(**asdict(message)))
        elif message is not None:
            _send(message)


def relayed() -> Relayed | None:
    """Return the display in the calling program; None for a command of a user."""
    return None if _caller.channel is None else Relayed()
