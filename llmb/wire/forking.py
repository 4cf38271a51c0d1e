"""Starts processes as forks of a clean process with torch and llmb imported: the fork server.

Importing torch and llmb takes two seconds of a core, and a run has six processes. The fork server
(``llmb.processes.fork_server``) imports torch and llmb once. docs/adr/0036 explains why a fork is
as isolated from its siblings as a new process.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from threading import Lock
from typing import IO

import llmb
from llmb import clock
from llmb.config import AUTOLOADS, environment, without_waiting
from llmb.plugin.builtin import host
from llmb.wire.address import descriptor_environment

#: The program of every child. ``python -m`` would search the working folder first, and a child
#: could run a different llmb than the supervisor. This program imports llmb from the supervisor's
#: folder, and records all code executed from then on. Garbage collection is off until ``serve``:
#: only modules are created, and collecting would take a sixth of the time.
BOOT = """
import gc, runpy, sys
gc.disable()
module, root = sys.argv[1:]
sys.path = [root, *(place for place in sys.path if place)]
import llmb
from llmb.observe.executed_code import listen
listen()
from llmb.plugin.builtin.host import give_up_tracing, ignore_early_warning, leave
give_up_tracing()
ignore_early_warning()
del sys.path[0]
runpy.run_module(module, run_name="__main__", alter_sys=True)
leave()
"""
ROOT = Path(llmb.__file__).resolve().parent.parent
_SERVER = "llmb.processes.fork_server"
#: Processes without a plugin that compute the figures to judge a plugin by.
WITHOUT_PLUGINS = frozenset({"llmb.processes.reference_run", "llmb.processes.replay_run"})
#: Importing torch from a cold network file system takes minutes.
_ANSWER_S = 300.0
#: ``import torch`` imports all packages of this entry point group, possibly a vendor's.
_AUTOLOADED = "torch.backends"


def command(module: str) -> list[str]:
    """Return the command line that runs ``module`` as a process of llmb."""
    return [sys.executable, "-c", BOOT, module, str(ROOT)]


def variables_for(module: str, wanted: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of a spawned ``module``: those ``wanted``, and no extension of torch.

    Example: ``import torch`` in the reference run imports no vendor's package, whatever the plugin
    or the user has set.
    """
    return {**wanted, **({AUTOLOADS: "0"} if module in WITHOUT_PLUGINS else {})}


class NoForkError(Exception):
    """The fork server made no process; the message has the reason."""


@dataclass
class Forked:
    """A process made by the fork server; a small replacement of ``subprocess.Popen``.

    This process becomes the parent of the forked process.
    """

    pid: int
    _code: int | None = None

    def poll(self) -> int | None:
        """Return the exit status, None while the process runs. Example: -9 after SIGKILL."""
        if self._code is None:
            try:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
            except ChildProcessError:  # the status was already collected elsewhere
                pid, status = self.pid, 0
            if pid:
                self._code = os.waitstatus_to_exitcode(status)
        return self._code

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit status once the process has ended.

        Raises:
            subprocess.TimeoutExpired: the process still runs after ``timeout`` seconds.
        """
        end = None if timeout is None else clock.now_ns() + int(timeout * 1e9)
        pause_s = 0.0005
        while (code := self.poll()) is None:
            if end is not None and clock.now_ns() >= end:
                raise subprocess.TimeoutExpired(str(self.pid), timeout or 0.0)
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, 0.05)
        return code


class ForkServer:
    """The supervisor's end of the fork server."""

    def __init__(self, variables: Mapping[str, str]) -> None:
        """Start the server with the environment ``variables``; imports run in the background."""
        self._variables = dict(variables)
        self._expected = without_waiting(environment())
        self._lock = Lock()
        self._trouble: str | None = None
        self._output = tempfile.TemporaryFile()  # noqa: SIM115  # closed at the end
        self._control, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                command(_SERVER),
                env=descriptor_environment(theirs.fileno(), variables),
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=self._output,
                stderr=self._output,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """Process id of the server."""
        return self._process.pid

    def refuses(self, wanted: Mapping[str, str]) -> str | None:
        """Return why a process with the environment variables ``wanted`` cannot be forked.

        None means that a fork is possible. A process with empty ``wanted`` gets the variables of
        the server. Different variables are too late for a fork: libraries read variables at load
        time, and the server has loaded the libraries. Example: ``the plugin sets OMP_NUM_THREADS``.
        """
        if self._trouble is not None:
            return self._trouble
        other = {name for name in wanted if self._variables.get(name) != wanted[name]}
        if wanted and other:
            return f"the plugin sets {', '.join(sorted(other))}"
        if without_waiting(environment()) != self._expected:
            return "the environment has changed"
        return None

    def fork(self, module: str, log: IO[bytes]) -> tuple[Forked, socket.socket]:
        """Return a new process that runs ``module``, and the supervisor's end of the channel.

        Output of the process goes to ``log``.

        Raises:
            NoForkError: no process was made; later calls of ``refuses`` return the same reason.
        """
        ours, theirs = socket.socketpair()
        with theirs, self._lock:
            try:
                order = json.dumps({"module": module}).encode() + b"\n"
                socket.send_fds(self._control, [order], [log.fileno(), theirs.fileno()])
                answer = self._answer()
            except (OSError, ValueError) as error:
                answer = {"refused": f"the fork server is gone ({error})"}
            if "pid" not in answer:
                ours.close()
                self._trouble = answer.get("refused", "the fork server is gone")
                raise NoForkError(self._trouble)
        return Forked(int(answer["pid"])), ours

    def _answer(self) -> dict[str, str]:
        self._control.settimeout(_ANSWER_S)
        line = b""
        while not line.endswith(b"\n"):
            chunk = self._control.recv(4096)
            if not chunk:
                raise OSError("closed")
            line += chunk
        answer: dict[str, str] = json.loads(line)
        return answer

    def end(self) -> None:
        """End the server; forked processes continue."""
        self._control.close()
        self._process.kill()  # the server has no state to save, and may be importing
        self._process.wait()
        self._output.close()


#: Running fork servers, the innermost last; and the start notes of every open ``noted`` context.
_servers: list[ForkServer] = []
_notes: list[dict[str, str]] = []


@contextmanager
def fork_server(plugin: str | None, device: str | None = None) -> Iterator[ForkServer | None]:
    """Fork the processes started inside this context, if possible.

    Yields None if processes are spawned instead, such as on macOS. The server has the environment
    variables of the plugin cpu, unless ``plugin`` or ``device`` names a different plugin. A nested
    context reuses the outer server. For llmb's own command line only: this process becomes the
    parent of every orphaned descendant.
    """
    if _servers:
        yield _servers[-1]
        return
    if sys.platform != "linux" or _imports_with_torch() or not host.adopt_orphans(yes=True):
        yield None
        return
    on_host = {plugin, device} <= {None, "cpu"}
    host.allow_debuggers(yes=False)  # no plugin may write to the memory of its judge
    server = ForkServer(host.variables() if on_host else {})
    _servers.append(server)
    try:
        yield server
    finally:
        _servers.pop()
        server.end()
        host.adopt_orphans(yes=False)
        host.allow_debuggers(yes=True)


@contextmanager
def noted() -> Iterator[dict[str, str]]:
    """Yield a dictionary of how each kind of process is started inside the context.

    Example: ``{"worker": "spawned: the environment has changed", "offer": "forked"}``.
    """
    starts: dict[str, str] = {}
    _notes.append(starts)
    try:
        yield starts
    finally:
        _notes.remove(starts)


def start(
    module: str, wanted: Mapping[str, str], log: IO[bytes]
) -> tuple[Forked, socket.socket] | None:
    """Return ``module`` as a forked process with a channel, None if the caller must spawn."""
    why, made = "", None
    if _servers:
        why = _servers[-1].refuses(wanted) or ""
        if not why:
            try:
                made = _servers[-1].fork(module, log)
            except NoForkError as error:
                why = str(error)
    for starts in _notes:
        name = module.rpartition(".")[2]
        how = "forked" if made else f"spawned: {why}" if why else "spawned"
        starts[name] = how if starts.get(name, how) == how else f"{starts[name]}; {how}"
    return made


def _imports_with_torch() -> bool:
    """Tell whether ``import torch`` imports a vendor's package; a clean process must not."""
    if environment().get(AUTOLOADS) == "0":
        return False
    return bool(entry_points(group=_AUTOLOADED))
