"""The rank address of this process, read from the environment variables of the launcher.

Example: ``RANK=3 WORLD_SIZE=8 MASTER_ADDR=node1 MASTER_PORT=29500``, as torchrun sets.
"""

from __future__ import annotations

import random
import socket
from collections.abc import Mapping
from typing import NamedTuple

from llmb.config import RankAddress
from llmb.errors import RunFailedError, UsageError


class _Names(NamedTuple):
    """The environment variables of a launcher for the four rank numbers."""

    rank: str
    world_size: str
    local_rank: str
    local_world_size: str


#: torch's own names first: a launcher that sets torch's names was configured to start torch.
_LAUNCHERS = (
    _Names("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
    # Open MPI, Cray's PALS, Hydra (MPICH, Intel MPI), a step of srun (a batch script has no step).
    _Names(
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
    ),
    _Names("PALS_RANKID", "PALS_SIZE", "PALS_LOCAL_RANKID", "PALS_LOCAL_SIZE"),
    _Names("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
    _Names("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_NTASKS_PER_NODE"),
)
#: Message of a rank that cannot learn the failure reason: the store of rank 0 does not answer.
UNREACHABLE = "rank 0 is gone, or its host cannot be reached any more"
_STORE = "TORCHELASTIC_USE_AGENT_STORE"
#: Ports below the ephemeral ports, which start at 32768 on Linux and at 49152 elsewhere.
_PORTS = range(20_000, 30_000)


def place_in(environment: Mapping[str, str]) -> RankAddress | None:
    """Return the rank address of this process, None for a single process.

    Raises:
        UsageError: an environment variable of a rank is missing or invalid. Example: ``RANK=8``
            with ``WORLD_SIZE=8``.
    """
    for names in _LAUNCHERS:
        if names.rank in environment and names.world_size in environment:
            break
    else:
        return None
    world_size = _number(environment, names.world_size)
    if world_size == 1:
        return None
    host, port = (environment.get(name, "") for name in ("MASTER_ADDR", "MASTER_PORT"))
    if not host or not port:
        raise UsageError(
            f"{names.world_size} is {world_size}, and MASTER_ADDR or MASTER_PORT is not set: say "
            "on which host and port rank 0 is to be met, or start the ranks with torchrun"
        )
    rank = _number(environment, names.rank)
    if rank >= world_size:
        raise UsageError(
            f"{names.rank} is {rank}: of {world_size} ranks the last is {world_size - 1}"
        )
    return RankAddress(
        rank=rank,
        world_size=world_size,
        local_rank=_number(environment, names.local_rank, 0),
        local_world_size=_number(environment, names.local_world_size, 1),
        host=host,
        port=_number(environment, "MASTER_PORT"),
        store_is_there=environment.get(_STORE) == "True",
    )


def last_of(nproc: int) -> RankAddress:
    """Return the address of the last of ``nproc`` ranks on this machine, before any rank starts."""
    last = nproc - 1
    return RankAddress(
        rank=last, world_size=nproc, local_rank=last, local_world_size=nproc, host="", port=1
    )


def free_port() -> int:
    """Return a port of this host that rank 0 can listen at some seconds later.

    Port 0 would let the system choose an ephemeral port. Any process may take an ephemeral port
    for a connection before rank 0 has started.

    Raises:
        RunFailedError: no port was free in 100 tries.
    """
    for port in random.sample(_PORTS, 100):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise RunFailedError(
        f"none of 100 ports from {_PORTS[0]} to {_PORTS[-1]} is free, and ranks meet at one: "
        "end the programs that listen there"
    )


def _number(environment: Mapping[str, str], name: str, default: int | None = None) -> int:
    text = environment.get(name, "" if default is None else str(default))
    if not (text.isascii() and text.isdigit()):
        raise UsageError(f"{name} is {text!r}: a rank's launcher sets it to a whole number")
    return int(text)
