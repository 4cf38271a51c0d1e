"""The clean process that forks the others: torch and llmb are imported, no plugin, no device.

It is made before seeds, nonces, the timed window and audited steps are drawn, and is told none of
them: an order holds the name of a module, and two file descriptors. See docs/adr/0036.
"""

from __future__ import annotations

import gc
import json
import os
import runpy
import socket
import sys
import time
from importlib import import_module

from llmb.config import give_descriptor, take_descriptor
from llmb.plugin.builtin import host
from llmb.wire.forking import command

#: What every process of a run imports, and then what most import while they work: the second after
#: the first process has been made, which asks a plugin and needs none of it.
_FIRST = ("torch", "llmb.processes.offer")
_THEN = (
    "torch._dynamo",
    *(
        f"llmb.processes.{name}"
        for name in ("ceilings", "worker", "honest_run", "reference_run", "collectives")
    ),
)
_LONGEST_ORDER = 4096
_INPUT, _OUTPUT, _ERRORS, _CHANNEL = range(4)


def serve(control: socket.socket) -> None:
    """Make a process for every order that comes, until the supervisor closes ``control``.

    It returns in the server alone: a process that was made ends inside.
    """
    _import(_FIRST)
    made = False
    while True:
        order, descriptors, _, _ = socket.recv_fds(control, _LONGEST_ORDER, 2)
        if not order:
            return
        module = json.loads(order)["module"]
        threads = len(os.listdir("/proc/self/task"))
        if threads != 1:  # a fork has only one of them, and locks that the others hold
            answer: dict[str, object] = {"refused": f"the fork server has {threads} threads"}
        else:
            answer = {"pid": _fork(control, module, *descriptors)}
        for descriptor in descriptors:
            os.close(descriptor)
        control.sendall(json.dumps(answer).encode() + b"\n")
        if not made:
            _import(_THEN)
            made = True


def _import(names: tuple[str, ...]) -> None:
    for name in names:
        import_module(name)


def _fork(control: socket.socket, module: str, log: int, channel: int) -> int:
    """Return the id of a new process that runs ``module``.

    Its parent is the supervisor, which adopts orphans: the process between ends at once.
    """
    read, write = os.pipe()
    between = os.fork()
    if between:
        os.close(write)
        os.waitpid(between, 0)
        with os.fdopen(read) as said:
            return int(said.read())
    first = os.getpid()
    if os.fork():
        os._exit(0)
    os.setsid()
    while os.getppid() == first:
        time.sleep(0.0005)
    os.write(write, str(os.getpid()).encode())
    _become(module, log, channel)
    sys.exit()


def _become(module: str, log: int, channel: int) -> None:
    """Be what a new process that runs ``module`` would be, and run it to its end."""
    host.allow_debuggers(yes=True)
    os.dup2(log, _OUTPUT)
    os.dup2(log, _ERRORS)
    os.dup2(channel, _CHANNEL)
    os.closerange(_CHANNEL + 1, os.sysconf("SC_OPEN_MAX"))
    give_descriptor(_CHANNEL)
    numpy = sys.modules.get("numpy.random")
    if numpy is not None:  # Python reseeds its own after a fork
        numpy.seed()
    sys.orig_argv[:] = command(module)
    sys.argv[:] = ["-c", *command(module)[3:]]
    gc.disable()
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def main() -> None:
    """Serve the supervisor that started this process."""
    host.die_with_parent()
    host.allow_debuggers(yes=False)
    with socket.socket(fileno=take_descriptor()) as control:
        serve(control)


if __name__ == "__main__":
    main()
