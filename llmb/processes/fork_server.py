"""The clean process that forks the others: torch and llmb are imported, no plugin, no device.

The fork server starts before seeds, nonces, the timed window and audited steps are drawn, and never
learns any of those. An order holds the name of a module and two file descriptors, for example
``llmb.processes.worker`` with the descriptors of a log and a channel. See docs/adr/0036.
"""

from __future__ import annotations

import gc
import json
import os
import runpy
import socket
import sys
import time
import weakref
from importlib import import_module
from typing import NoReturn

from llmb.config import one_blas_thread, torch_alone
from llmb.plugin.builtin import host
from llmb.wire.address import give_descriptor, take_descriptor
from llmb.wire.forking import WITHOUT_PLUGINS, command

#: Modules that the processes of a run import, and modules that torch imports while working. All are
#: imported before the first order is answered: nothing may run beside a process that measures.
_IMPORTED = (
    "torch",
    "torch.fx.experimental.symbolic_shapes",  # by the first gradient
    "torch._dynamo",  # by the first optimizer
    *(
        f"llmb.processes.{name}"
        for name in ("offer", "ceilings", "worker", "honest_run", "reference_run")
    ),
)
_LONGEST_ORDER = 4096
_OUTPUT, _ERRORS, _CHANNEL = 1, 2, 3


def serve(control: socket.socket) -> None:
    """Make a process for every order, until the supervisor closes ``control``.

    Only the server returns from this function: a forked process ends inside.
    """
    with one_blas_thread(), torch_alone():
        for name in _IMPORTED:
            import_module(name)
    from llmb.observe import namespace

    _read_packages()
    namespace.prepare()
    for cleaning in list(weakref.finalize._registry):  # type: ignore[attr-defined]
        cleaning.atexit = False  # torch would unregister operators, 0.05 s in each process
    while True:
        order, descriptors, _, _ = socket.recv_fds(control, _LONGEST_ORDER, 2)
        if not order:
            return
        module = json.loads(order)["module"]
        threads = len(os.listdir("/proc/self/task"))
        if threads != 1:  # a fork keeps one thread, and locks that the other threads hold
            answer: dict[str, object] = {"refused": f"the fork server has {threads} threads"}
        else:
            log, channel = descriptors
            answer = {"pid": _fork(control, module, log, channel)}
        for descriptor in descriptors:
            os.close(descriptor)
        control.sendall(json.dumps(answer).encode() + b"\n")


def _fork(control: socket.socket, module: str, log: int, channel: int) -> int:
    """Return the id of a new process that runs ``module``.

    The parent is the supervisor, which adopts orphans: the process between ends at once.
    """
    read, write = os.pipe()
    between = os.fork()
    if not between:
        _go_on(control, write, module, log, channel)
    os.close(write)
    os.waitpid(between, 0)
    with os.fdopen(read) as said:
        return int(said.read())


def _go_on(control: socket.socket, told: int, module: str, log: int, channel: int) -> NoReturn:
    """Go on as the new process, and write the process id to ``told``.

    The process between ends in this function.
    """
    first = os.getpid()
    if os.fork():
        os._exit(0)
    os.setsid()
    while os.getppid() == first:
        time.sleep(0.0005)
    os.write(told, str(os.getpid()).encode())
    control.detach()
    _become(module, log, channel)
    host.leave()


def _become(module: str, log: int, channel: int) -> None:
    """Set this process up like a new process for ``module``, and run the module to the end."""
    host.allow_debuggers(yes=module not in WITHOUT_PLUGINS)
    os.dup2(log, _OUTPUT)
    os.dup2(log, _ERRORS)
    os.dup2(channel, _CHANNEL, inheritable=False)
    os.closerange(_CHANNEL + 1, os.sysconf("SC_OPEN_MAX"))
    give_descriptor(_CHANNEL)
    _draw_anew()
    sys.orig_argv[:] = command(module)
    sys.argv[:] = ["-c", *command(module)[3:]]
    gc.disable()
    sys.modules.pop(module, None)  # as in a new process; runpy warns where it finds the module
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def _read_packages() -> None:
    """Read the packages that torch and llmb need, and the owners of files: results are cached."""
    from llmb.observe.origins import Origins

    Origins(host.__name__, "llmb").of(sys.modules["torch"].__file__ or "")


def _draw_anew() -> None:
    """Seed the random number generators from the system, as a new process does.

    Python reseeds ``random`` after a fork; torch and numpy keep the state of the import.
    """
    sys.modules["torch"].default_generator.seed()
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed()


def main() -> None:
    """Serve the supervisor that started this process."""
    host.die_with_parent()
    host.allow_debuggers(yes=False)
    with socket.socket(fileno=take_descriptor()) as control:
        serve(control)


if __name__ == "__main__":
    main()
