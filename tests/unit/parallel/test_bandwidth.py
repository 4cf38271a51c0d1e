"""Bus bandwidth by nccl-tests' formula, and collectives between real ranks."""

from __future__ import annotations

import pytest

from llmb import workloads
from llmb.config import RunRequest
from llmb.node.bus import time_collectives
from llmb.parallel.bandwidth import bus_bytes_per_second
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


@pytest.mark.slow
def test_two_ranks_time_every_collective_at_every_size():
    request = RunRequest(plugin="cpu", precision="FP32", shape_overrides={"num_hidden_layers": 1})
    negotiated = negotiate(request, workloads.of(request))
    rates = time_collectives(negotiated, 2, 300.0, lambda: None)
    assert len(rates) == len({(rate.kind, rate.bytes) for rate in rates}) == 20
    for rate in rates:
        due = bus_bytes_per_second(rate.kind, rate.bytes, 2, rate.seconds)
        assert rate.bus_bytes_per_second == pytest.approx(due)
