"""Where a process stands is read from its launcher's variables, whichever launcher it is."""

from __future__ import annotations

import socket

import pytest

from llmb.errors import RunFailedError, UsageError
from llmb.parallel import place
from llmb.parallel.place import free_port, place_in

MEETING = {"MASTER_ADDR": "node0", "MASTER_PORT": "29500"}
TORCHRUN = {"RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}


def test_a_process_that_nobody_launched_as_a_rank_is_alone() -> None:
    assert place_in({}) is None
    assert place_in({"RANK": "0", **MEETING}) is None
    assert place_in({"SLURM_PROCID": "0", "SLURM_NTASKS": "8"}) is None, "a batch script"
    assert place_in({"RANK": "0", "WORLD_SIZE": "1"}) is None


@pytest.mark.parametrize(
    "variables",
    [
        TORCHRUN,
        {
            "OMPI_COMM_WORLD_RANK": "3",
            "OMPI_COMM_WORLD_SIZE": "8",
            "OMPI_COMM_WORLD_LOCAL_RANK": "1",
            "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
        },
        {"PALS_RANKID": "3", "PALS_SIZE": "8", "PALS_LOCAL_RANKID": "1", "PALS_LOCAL_SIZE": "2"},
        {"PMI_RANK": "3", "PMI_SIZE": "8", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"},
        {
            "SLURM_PROCID": "3",
            "SLURM_STEP_NUM_TASKS": "8",
            "SLURM_LOCALID": "1",
            "SLURM_NTASKS_PER_NODE": "2",
        },
    ],
    ids=lambda variables: next(iter(variables)),
)
def test_every_launcher_is_understood(variables: dict[str, str]) -> None:
    place = place_in({**variables, **MEETING})
    assert place is not None
    assert (place.rank, place.world_size, place.local_rank, place.local_world_size) == (3, 8, 1, 2)
    assert (place.host, place.port, place.store_is_there) == ("node0", 29500, False)
    assert not place.leads


def test_torchs_own_variables_count_before_those_of_what_started_torchrun() -> None:
    srun = {"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2"}
    place = place_in({**srun, **TORCHRUN, **MEETING, "TORCHELASTIC_USE_AGENT_STORE": "True"})
    assert place is not None
    assert (place.rank, place.world_size, place.store_is_there) == (3, 8, True)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"MASTER_ADDR": ""}, "MASTER_ADDR or MASTER_PORT is not set"),
        ({"MASTER_PORT": ""}, "MASTER_ADDR or MASTER_PORT is not set"),
        ({"MASTER_PORT": "http"}, "MASTER_PORT is 'http'"),
        ({"RANK": "8"}, "of 8 ranks the last is 7"),
        ({"RANK": "-1"}, "RANK is '-1'"),
        ({"WORLD_SIZE": "many"}, "WORLD_SIZE is 'many'"),
        ({"LOCAL_RANK": "\u0663"}, "LOCAL_RANK is"),
    ],
)
def test_a_place_that_is_none_is_one_line(changed: dict[str, str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        place_in({**TORCHRUN, **MEETING, **changed})


def test_a_free_port_is_none_that_a_connection_may_be_given_meanwhile() -> None:
    port = free_port()
    assert 20_000 <= port < 30_000
    with socket.create_server(("127.0.0.1", port)):
        pass  # the port can be had


def test_a_port_where_somebody_listens_is_not_free(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        monkeypatch.setattr(place, "_PORTS", [taken.getsockname()[1]] * 100)
        with pytest.raises(RunFailedError, match="none of 100 ports"):
            free_port()
