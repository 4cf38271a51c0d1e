"""Starting processes as forks of one clean process that has torch and llmb imported already.

Importing them takes two seconds of a core, and a run has six processes. The fork server
(``llmb.processes.fork_server``) imports them once. docs/adr/0036 says why a fork is as far away
from its siblings as a new process is.
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
from llmb.config import environment, without_waiting
from llmb.measure import clock
from llmb.plugin.builtin import host
from llmb.wire.address import descriptor_environment

#: ``python -m`` would look in the working folder first, and a child started there could run another
#: llmb than its supervisor. This one is found where the supervisor found it, and listens to all
#: code that is run from there on. Until ``serve`` nothing but modules is made: to look for garbage
#: among them would take a sixth of the time.
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
#: Importing torch from a cold network file system takes minutes.
_ANSWER_S = 300.0
#: Of torch: packages under it are imported with torch, and could be a vendor's.
_AUTOLOADED, _AUTOLOADS = "torch.backends", "TORCH_DEVICE_BACKEND_AUTOLOAD"


def command(module: str) -> list[str]:
    """Return the command line that runs ``module`` as a process of llmb."""
    return [sys.executable, "-c", BOOT, module, str(ROOT)]


class NoForkError(Exception):
    """The fork server made no process; says why."""


@dataclass
class Forked:
    """A process that the fork server has made: this process is its parent (``Popen``'s part)."""

    pid: int
    _code: int | None = None

    def poll(self) -> int | None:
        """Return the exit status, None while the process runs; -9 if SIGKILL ended it."""
        if self._code is None:
            try:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
            except ChildProcessError:  # somebody else has waited for it
                pid, status = self.pid, 0
            if pid:
                self._code = os.waitstatus_to_exitcode(status)
        return self._code

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit status once the process has ended.

        Raises:
            subprocess.TimeoutExpired: it runs after ``timeout`` seconds.
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
        """Start it with the environment ``variables``; it imports in the background."""
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

        None: it can. A process that wants no variables takes the server's. Other variables come too
        late for a fork: libraries read theirs when they are loaded, and the server has loaded them.
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
        """Return a new process that runs ``module``, and the supervisor's end of its channel.

        Its output goes to ``log``.

        Raises:
            NoForkError: none was made, nor will be.
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
        """End the server; the processes it has made go on."""
        self._control.close()
        self._process.kill()  # it has nothing to lose, and may be in the middle of an import
        self._process.wait()
        self._output.close()


#: Servers that are at work, the innermost last; how processes were started, where that is noted.
_servers: list[ForkServer] = []
_notes: list[dict[str, str]] = []


@contextmanager
def fork_server(plugin: str | None, device: str | None = None) -> Iterator[ForkServer | None]:
    """Fork the processes of a run that are started inside this context, where that can be done.

    Gives None where they are spawned instead. The server has the environment variables of the
    plugin cpu unless another ``plugin`` or ``device`` was asked for. Inside another context the
    outer server goes on. For llmb's own command line only: this process becomes the parent of each
    descendant whose own parent ends.
    """
    if _servers:
        yield _servers[-1]
        return
    if sys.platform != "linux" or _imports_with_torch() or not host.adopt_orphans(yes=True):
        yield None
        return
    on_host = {plugin, device} <= {None, "cpu"}
    host.allow_debuggers(yes=False)  # no plugin may write to the supervisor, which judges it
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
    """Give how each kind of process is started inside: "forked", or "spawned" and why."""
    starts: dict[str, str] = {}
    _notes.append(starts)
    try:
        yield starts
    finally:
        _notes.remove(starts)


def start(
    module: str, wanted: Mapping[str, str], log: IO[bytes]
) -> tuple[Forked, socket.socket] | None:
    """Return ``module`` as a forked process with its channel, None where it is to be spawned."""
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
    """Tell whether ``import torch`` imports a vendor's package, which no clean process may."""
    if environment().get(_AUTOLOADS) == "0":
        return False
    return bool(entry_points(group=_AUTOLOADED))
