"""Makes a run in a process of its own: the command ``llmb run``, and a channel back.

The process is the supervisor of the run, as on the command line: no state of the calling program
counts, such as loaded packages, signal handlers, variables set later, or a working torch. The
calling program in turn keeps its environment, threads and handlers.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import IO, TYPE_CHECKING
from urllib.parse import unquote_to_bytes

import llmb.errors
from llmb.cli.caller import INTERRUPTED
from llmb.config import environment
from llmb.endings import Interrupted
from llmb.errors import LlmbError, RunFailedError, UnavailableError, UsageError
from llmb.parallel.place import place_in
from llmb.supervision.silence import Silence
from llmb.wire.address import called_environment
from llmb.wire.channel import Channel, ChannelClosedError
from llmb.wire.forking import ROOT
from llmb.wire.messages import (
    Failure,
    Fence,
    Message,
    Phase,
    Recorded,
    SilenceShown,
    StreamShown,
    TextShown,
    Tick,
)

if TYPE_CHECKING:
    from llmb.supervision.run_phases import Display

#: The program of the process: ``llmb`` with the same package as here, wherever Python would look.
_PROGRAM = """
import sys
sys.argv[0] = "llmb"
root = sys.argv.pop(1)
sys.path = [root, *(place for place in sys.path if place)]
from llmb.cli import caller, main
del sys.path[0]
caller.meet()
main()
"""
#: Seconds between two looks at a process without a message.
_SLICE_S = 0.5
#: Longest wait for a process that was asked to end, in seconds, before the process is killed.
_PATIENCE_S = 60.0
_MOST_OUTPUT = 2000
#: Two measurements at once would disturb each other: runs of one program take turns.
_turn = Lock()


def run_directory_of(words: Sequence[str], display: Display) -> Path:
    """Carry out ``llmb run`` with ``words``, and return the run directory.

    An interrupt (Ctrl-C, or the stop button of a notebook) is passed on to the process, and this
    function returns after the end of the process and of its children.

    Raises:
        LlmbError: the error of the command; ``run_dir`` of an INVALID run's error is set.
        Interrupted: a signal ended the run; the text says which files are kept.
    """
    if place_in(environment()) is not None:
        raise UsageError(
            "llmb.run starts ranks itself (nproc=2): under torchrun, mpiexec or srun use the "
            "command, such as `torchrun --nproc-per-node 2 -m llmb run`"
        )
    if not sys.executable:
        raise UnavailableError("llmb.run starts Python, and this program has no sys.executable")
    if not _turn.acquire(blocking=False):
        display.phase("waiting for another llmb.run of this program")
        _turn.acquire()
    try:
        with tempfile.TemporaryFile() as said:
            return _CalledRun(words, display, said).result()
    finally:
        _turn.release()


@dataclass
class _CalledRun:
    """A process of ``llmb run``, and its reports up to now."""

    words: Sequence[str]
    display: Display
    #: File for stderr of the process; only a defect of llmb writes there more than its error.
    said: IO[bytes]
    recorded: Path | None = None
    failure: Failure | None = None
    #: True: this program was interrupted, and has passed the interrupt on.
    passed_on: bool = field(default=False, init=False)

    def result(self) -> Path:
        """Return the run directory after the end of the process."""
        ours, theirs = socket.socketpair()
        with ours:
            with theirs:
                process = self._started(theirs)
            try:
                self._listen(process, Channel(ours))
                code = self._ended(process)
            except BaseException:
                _end(process)
                raise
        if self.failure is not None or code or self.recorded is None:
            raise self._error(code)
        return self.recorded

    def _started(self, theirs: socket.socket) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-c", _PROGRAM, str(ROOT), "run", *self.words]
        try:
            return subprocess.Popen(
                command,
                env=called_environment(),
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=self.said,
            )
        except OSError as error:
            raise UnavailableError(f"{sys.executable}: cannot start ({error.strerror})") from None

    def _listen(self, process: subprocess.Popen[bytes], channel: Channel) -> None:
        """Take in messages until the process has ended."""
        while True:
            try:
                message = channel.receive(_SLICE_S)
                if message is None and process.poll() is not None and not channel.pending():
                    return  # a process that was left behind may hold the channel open
                self._take(message)
            except ChannelClosedError:
                return
            except RunFailedError:
                continue  # an interrupt has cut a line in two
            except KeyboardInterrupt:
                self._pass_on(process)

    def _take(self, message: Message | None) -> None:
        if isinstance(message, Recorded):
            self.recorded = Path(os.fsdecode(unquote_to_bytes(message.path)))
        elif isinstance(message, Failure):
            self.failure = self.failure or message  # of several ranks, the first knows the reason
        elif isinstance(message, TextShown):
            show = self.display.phase if message.what == "phase" else self.display.note
            show(message.text)
        elif isinstance(message, StreamShown):
            self.display.stream(message.steps, message.tokens_per_step, message.label)
        elif isinstance(message, SilenceShown):
            shown = message.model_dump(exclude={"kind"})
            self.display.message(Silence(**shown))
        elif message is None or isinstance(message, (Phase, Tick, Fence)):
            self.display.message(message)

    def _ended(self, process: subprocess.Popen[bytes]) -> int:
        while True:
            try:
                return process.wait()
            except KeyboardInterrupt:
                self._pass_on(process)

    def _pass_on(self, process: subprocess.Popen[bytes]) -> None:
        """Interrupt the process, which a terminal or a notebook may have done, too."""
        self.passed_on = True
        process.send_signal(signal.SIGINT)

    def _error(self, code: int) -> LlmbError | Interrupted:
        """Return the error of a process that ended with exit status ``code``."""
        if self.failure is None:
            return self._silent(code)
        if self.failure.error == INTERRUPTED:
            by = "SIGINT" if self.passed_on else "a signal to the run"
            return Interrupted(by, self.failure.message)
        kind: type[LlmbError] = getattr(llmb.errors, self.failure.error, RunFailedError)
        error = kind(self.failure.message)
        error.run_dir = self.recorded
        return error

    def _silent(self, code: int) -> LlmbError | Interrupted:
        """Return the error of a process that reported no error."""
        if self.passed_on:
            return Interrupted("SIGINT", "interrupted by SIGINT before the run began: no result")
        if code < 0:
            with suppress(ValueError):
                return RunFailedError(
                    f"the process of the run ended by {signal.Signals(-code).name}"
                )
        self.said.seek(0)
        lines = self.said.read()[-_MOST_OUTPUT:].decode(errors="replace").split("\n")
        last = next((line for line in reversed(lines) if line.strip()), "no output")
        return LlmbError(f"the process of the run ended with exit code {code}: {last.strip()}")


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the process, and with it its children, after an error of this program."""
    process.terminate()
    try:
        process.wait(_PATIENCE_S)
    except BaseException:
        process.kill()
        process.wait()
