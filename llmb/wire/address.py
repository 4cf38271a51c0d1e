"""The supervisor's address for child processes, passed in environment variables.

Example: ``LLMB_SOCKET=/tmp/llmb-x/socket`` with a random ``LLMB_NONCE``.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from llmb.config import Frozen


class WorkerAddress(Frozen):
    """The address of the supervisor: socket path and nonce, or an open file descriptor."""

    socket_path: str
    nonce: str
    #: File descriptor of the open channel, in a forked process; replaces path and nonce.
    descriptor: int | None = None


_SOCKET, _NONCE, _DESCRIPTOR = "LLMB_SOCKET", "LLMB_NONCE", "LLMB_DESCRIPTOR"
#: Set for a process with a socket to a calling program (``llmb.api``) as standard input.
_CALLED = "LLMB_CALLED"


def child_environment(address: WorkerAddress, extra: Mapping[str, str]) -> dict[str, str]:
    """Return a child's environment: this process's variables, the plugin's, and the address.

    The address is in the environment because torchrun passes no file descriptors to its ranks.
    """
    variables = {**os.environ, **extra, _SOCKET: address.socket_path, _NONCE: address.nonce}
    variables.pop(_DESCRIPTOR, None)  # else a plugin's file could pass for the channel
    return variables


def worker_address() -> WorkerAddress:
    """Return the supervisor's address and remove the address from the environment."""
    if _DESCRIPTOR in os.environ:
        return WorkerAddress(socket_path="", nonce="", descriptor=take_descriptor())
    return WorkerAddress(socket_path=os.environ.pop(_SOCKET), nonce=os.environ.pop(_NONCE))


def descriptor_environment(descriptor: int, extra: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a child with the open ``descriptor`` and variables ``extra``."""
    return {**os.environ, **extra, _DESCRIPTOR: str(descriptor)}


def give_descriptor(descriptor: int) -> None:
    """Put the channel's ``descriptor`` into the environment of this process."""
    os.environ[_DESCRIPTOR] = str(descriptor)


def take_descriptor() -> int:
    """Return the channel's descriptor and remove the variable from the environment."""
    return int(os.environ.pop(_DESCRIPTOR))


def called_environment() -> dict[str, str]:
    """Return the environment of an ``llmb`` with a socket to this process as standard input."""
    return {**os.environ, _CALLED: "1"}


def take_called() -> bool:
    """Tell whether standard input is a socket to a calling program, and remove the variable.

    No process of the run inherits the variable or the socket: a plugin cannot speak to the caller.
    """
    return os.environ.pop(_CALLED, None) is not None


@contextmanager
def ranks_called() -> Iterator[None]:
    """Let ranks started inside speak to the calling program: ranks inherit standard input."""
    os.environ[_CALLED] = "1"
    try:
        yield
    finally:
        os.environ.pop(_CALLED, None)
