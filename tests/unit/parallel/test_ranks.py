"""What ranks make of what each of them has."""

from __future__ import annotations

import socket
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
import torch.distributed as dist

from llmb.config import RankAddress
from llmb.errors import LlmbError, RunFailedError, UsageError
from llmb.parallel import ranks as module
from llmb.parallel.ranks import Ranks, _differences, _wait_for_all, abort_collectives
from tests.unit.builders_runtime import run_config


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
        place = RankAddress(
            rank=0, world_size=2, local_rank=0, local_world_size=2, host=host, port=port
        )
        with pytest.raises(RunFailedError) as raised:
            Ranks(place, "gloo", 0, 60.0, sys.exit)
    assert str(raised.value) == (
        f"rank 0 cannot listen at 127.0.0.1:{port}, where another program does: set MASTER_PORT "
        "to a free port"
    )


@pytest.mark.parametrize(
    ("error", "first", "raised"),
    [
        (UsageError("--tp 2: no"), "rank 1: --tp 2: no", UsageError),
        (UsageError("--tp 2: no"), "rank 0: --tp 2: no", UsageError),
        (RuntimeError("Connection closed by peer"), "rank 1: --tp 2: no", RunFailedError),
        (ValueError("what"), "rank 1: --tp 2: no", RunFailedError),
    ],
)
def test_what_all_ranks_refuse_ends_alike_whichever_rank_was_heard_first(
    error: Exception, first: str, raised: type[Exception], tmp_path: Path
) -> None:
    ranks = Ranks.__new__(Ranks)
    ranks.place, ranks._calls_folder = place(0, 2), tmp_path
    ranks.lookout = cast(Any, SimpleNamespace(blame=lambda _: first, fail=lambda _: first))
    with pytest.raises(LlmbError) as found:
        ranks.__exit__(type(error), error, None)
    assert (type(found.value), str(found.value)) == (raised, first)


class Met:
    """A store in which all have come, or rank 0 has said who has not; counts keys asked for."""

    def __init__(self, values: dict[str, str]) -> None:
        self.values, self.asked = values, []

    def set(self, key: str, value: str) -> None:
        self.values[key] = value

    def get(self, key: str) -> bytes:
        return self.values[key].encode()

    def check(self, keys: list[str]) -> bool:
        self.asked.append(len(keys))
        return all(key in self.values for key in keys)


def place(rank: int, world_size: int) -> RankAddress:
    return RankAddress(
        rank=rank,
        world_size=world_size,
        local_rank=0,
        local_world_size=1,
        host="there",
        port=1,
    )


def test_rank_0_alone_looks_for_all_others_and_each_of_them_asks_for_its_word() -> None:
    store = Met({f"alive/{rank}": "" for rank in range(64)})
    _wait_for_all(place(0, 64), store, 1.0)
    assert (max(store.asked), len(store.asked)) == (64, 2)
    store.asked = []
    _wait_for_all(place(7, 64), store, 1.0)
    assert store.asked == [1, 1]


def test_who_did_not_come_is_what_rank_0_says_to_all() -> None:
    store = Met({f"alive/{rank}": "" for rank in (0, 2)})
    for rank in (0, 2):
        with pytest.raises(RunFailedError, match="ranks 1, 3 did not come to there:1"):
            _wait_for_all(place(rank, 4), store, 0.0)


LEADING = {
    "llmb": "0.1.0",
    "reference": "0" * 64,
    "torch": "2.13.0",
    "python": "3.11.7",
    "config": run_config().model_dump(mode="json"),
}


@pytest.mark.parametrize("name", ["llmb", "reference", "torch", "python"])
def test_a_rank_with_another_version_is_not_as_rank_0(name: str) -> None:
    theirs = {**LEADING, name: "other"}
    assert _differences(LEADING, theirs) == [f"{name} other instead of {LEADING[name]}"]


@pytest.mark.parametrize("name", [name for name in LEADING["config"] if name != "precision"])
def test_a_rank_that_was_asked_for_anything_else_but_seed_and_device_is_not_as_rank_0(
    name: str,
) -> None:
    theirs = {**LEADING, "config": {**LEADING["config"], name: "other"}}
    found = _differences(LEADING, theirs)
    assert bool(found) is (name not in ("seed", "device"))
    assert not found or found[0].startswith(f"{name} 'other' instead of ")


def test_ranks_that_are_alike_differ_in_nothing() -> None:
    assert _differences(LEADING, dict(LEADING)) == []


def test_ranks_may_have_found_another_way_of_multiplying_faster_but_not_be_asked_otherwise() -> (
    None
):
    def side(name: str, *, wide: bool, steps: int = 20) -> dict[str, Any]:
        how = {"native": not wide, "products": "FP32" if wide else None}
        precision = {**LEADING["config"]["precision"], **how, "name": name}
        config = {**LEADING["config"], "precision": precision, "timed_steps": steps}
        return {**LEADING, "config": config}

    leading = side("BF16", wide=True)
    assert _differences(leading, side("BF16", wide=False)) == []
    assert _differences(leading, side("BF16", wide=False, steps=21)) == [
        "timed_steps 21 instead of 20"
    ]
    (other,) = _differences(leading, side("FP16", wide=False))
    assert "FP16" in other
    assert other.startswith("precision ")


def test_a_rank_sends_the_reason_before_it_aborts_its_collectives(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    done: list[str] = []
    monkeypatch.setattr(module, "abort_collectives", lambda: done.append("aborted"))
    failed: Any = SimpleNamespace(
        _calls_folder="", place=SimpleNamespace(rank=1), _give_up=done.append
    )
    Ranks._ended(failed, "rank 0 ended")
    assert done == ["rank 0 ended", "aborted"]


def test_collectives_are_aborted_without_an_error_where_there_are_none_or_gloos() -> None:
    abort_collectives()  # without a process group
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    abort_collectives()
    assert not dist.is_initialized()
