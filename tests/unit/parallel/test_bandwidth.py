"""Bus bandwidth by nccl-tests' formula, and collectives between real ranks."""

from __future__ import annotations

import json
import subprocess
import sys
from types import SimpleNamespace

import pytest

from llmb import workloads
from llmb.config import RunRequest
from llmb.node.bus import time_collectives
from llmb.parallel import bandwidth
from llmb.parallel.bandwidth import bus_bytes_per_second
from llmb.plugin.builtin.cpu import CpuBackend
from llmb.records.interconnect import CollectiveRate
from llmb.supervision.negotiation import negotiate


@pytest.mark.parametrize(
    ("kind", "ranks", "share"),
    [
        ("all_reduce", 2, 1.0),
        ("all_reduce", 8, 1.75),
        ("all_gather", 8, 0.875),
        ("reduce_scatter", 4, 0.75),
        ("broadcast", 8, 1.0),
        ("send_receive", 8, 1.0),
    ],
)
def test_a_link_carries_its_share_of_the_size(kind, ranks, share):
    assert bus_bytes_per_second(kind, 1000, ranks, 0.5) == pytest.approx(2000 * share)


def held_to_their_sizes(rates):
    assert len(rates) == len({(rate.kind, rate.bytes) for rate in rates}) == 20
    for rate in rates:
        due = bus_bytes_per_second(rate.kind, rate.bytes, 2, rate.seconds)
        assert rate.bus_bytes_per_second == pytest.approx(due)


#: A process that parts in two: each is a rank, and the first says what it measured.
TWO_RANKS = """
import json, os, sys
from llmb.config import RankAddress
from llmb.parallel import bandwidth
from llmb.parallel.place import free_port
from llmb.parallel.ranks import Ranks
from llmb.plugin.builtin.cpu import CpuBackend

bandwidth._ROUND_S = 0.0  # one call in a round
port = free_port()
other = os.fork()
rank = 0 if other else 1
place = RankAddress(
    rank=rank, world_size=2, local_rank=rank, local_world_size=2, host="127.0.0.1", port=port
)
with Ranks(place, "gloo", 0, 60.0, sys.exit) as ranks:
    rates = [*bandwidth.measure(CpuBackend(), "cpu", ranks)]
    ranks.gather(None)  # rank 0 keeps the store until all are here
if rank == 0:
    assert os.waitpid(other, 0)[1] == 0
    print(json.dumps([rate.model_dump() for rate in rates]))
"""


def test_two_ranks_take_every_collective_at_every_size():
    done = subprocess.run(
        [sys.executable, "-c", TWO_RANKS], check=True, capture_output=True, timeout=120
    )
    held_to_their_sizes([CollectiveRate(**rate) for rate in json.loads(done.stdout)])


@pytest.mark.full
def test_two_processes_of_their_own_time_every_collective_at_every_size():
    request = RunRequest(plugin="cpu", precision="FP32", shape_overrides={"num_hidden_layers": 1})
    negotiated = negotiate(request, workloads.of(request))
    held_to_their_sizes(time_collectives(negotiated, 2, 300.0, lambda: None))


class Ranks:
    """Two ranks, of which one has little memory."""

    place = SimpleNamespace(world_size=2)

    def __init__(self, free=2**40):
        self.free = free

    def gather(self, value):
        return [self.free, 2**40]


@pytest.fixture
def asked(monkeypatch):
    """Return the sizes that are measured, each call in the seconds of ``took``."""
    sizes, took = [], {}

    def collective(kind, count, device, ranks):
        sizes.append(4 * count)
        return (lambda: None), None

    def rounds(*_):
        return 1, (took.get(sizes[-1], 1e-6),) * 5

    monkeypatch.setattr(bandwidth, "_collective", collective)
    monkeypatch.setattr(bandwidth, "_check", lambda *_: None)
    monkeypatch.setattr(bandwidth, "_rounds", rounds)
    return SimpleNamespace(sizes=sizes, took=took)


def test_buffers_are_as_large_as_the_rank_with_least_memory_allows(asked):
    list(bandwidth.measure(CpuBackend(), "cpu", Ranks(2**20 * bandwidth._MEMORY_SHARE)))
    assert max(asked.sizes) == 2**20


def test_a_slow_network_is_measured_at_fewer_sizes_and_other_kinds_all_the_same(asked):
    asked.took |= {2**20: 0.2, 64: 0.1}  # 5 MB/s: 16 MiB would take 3.2 s
    rates = bandwidth.measure(CpuBackend(), "cpu", Ranks(), ("all_reduce", "all_gather"))
    assert [rate.bytes for rate in rates] == [64, 64 * 2**10, 2**20] * 2


def test_a_round_has_as_many_calls_as_fit_and_the_slowest_rank_counts(monkeypatch):
    rows = iter([0.02, 0.01, *([0.01] * 5)])
    monkeypatch.setattr(bandwidth, "_row_s", lambda *_: next(rows))
    slower = SimpleNamespace(gather=lambda mine: [mine, [2 * each for each in mine]])
    calls, rounds_s = bandwidth._rounds(lambda: None, CpuBackend(), slower)
    assert (calls, rounds_s) == (2, (0.02,) * 5)
