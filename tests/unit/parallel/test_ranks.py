"""What ranks make of what each of them has."""

from __future__ import annotations

import socket
import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from llmb.config import Place
from llmb.errors import RunFailedError
from llmb.parallel.ranks import Ranks


def test_the_mean_is_the_sum_of_every_ranks_value_over_their_number(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def all_reduce(total: torch.Tensor, group: object) -> None:
        total += 1.0 + 2.0 + 6.0  # of three others

    monkeypatch.setattr(dist, "all_reduce", all_reduce)
    ranks: Any = SimpleNamespace(_control=None, place=SimpleNamespace(world_size=4))
    assert Ranks.mean(ranks, torch.tensor(3.0)).item() == 3.0


def test_a_port_that_another_program_has_is_named_with_what_to_do() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        host, port = taken.getsockname()
        place = Place(rank=0, world_size=2, local_rank=0, local_world_size=2, host=host, port=port)
        with pytest.raises(RunFailedError) as raised:
            Ranks(place, "gloo", 0, 60.0, sys.exit)
    assert str(raised.value) == (
        f"rank 0 cannot listen at 127.0.0.1:{port}, where another program does: set MASTER_PORT "
        "to a free port"
    )
