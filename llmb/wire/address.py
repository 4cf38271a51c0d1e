"""Where a process finds its supervisor: what its environment says of that."""

from __future__ import annotations

import os
from collections.abc import Mapping

from llmb.config import Frozen


class WorkerAddress(Frozen):
    """Where a child process finds its supervisor."""

    socket_path: str
    nonce: str
    #: Number of an open channel instead of the two, in a process that was forked.
    descriptor: int | None = None


_SOCKET, _NONCE, _DESCRIPTOR = "LLMB_SOCKET", "LLMB_NONCE", "LLMB_DESCRIPTOR"


def child_environment(address: WorkerAddress, extra: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a child process: this one's, the plugin's variables, the address.

    The address travels in the environment because torchrun passes no file descriptors on.
    """
    variables = {**os.environ, **extra, _SOCKET: address.socket_path, _NONCE: address.nonce}
    variables.pop(_DESCRIPTOR, None)  # with it a plugin's own file would be taken for the channel
    return variables


def worker_address() -> WorkerAddress:
    """Return the address this child process was given, and take it out of the environment."""
    if _DESCRIPTOR in os.environ:
        return WorkerAddress(socket_path="", nonce="", descriptor=take_descriptor())
    return WorkerAddress(socket_path=os.environ.pop(_SOCKET), nonce=os.environ.pop(_NONCE))


def descriptor_environment(descriptor: int, extra: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a child that is given the open ``descriptor``, and ``extra``."""
    return {**os.environ, **extra, _DESCRIPTOR: str(descriptor)}


def give_descriptor(descriptor: int) -> None:
    """Say in this process's own environment which ``descriptor`` its channel is."""
    os.environ[_DESCRIPTOR] = str(descriptor)


def take_descriptor() -> int:
    """Return the descriptor this process was given, and take it out of the environment."""
    return int(os.environ.pop(_DESCRIPTOR))
