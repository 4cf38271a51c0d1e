"""What was measured becomes a description; what was not is left open, and refused where needed."""

from __future__ import annotations

import pytest

from llmb.errors import RunFailedError, UsageError
from llmb.node.described import hardware_of, memory_of
from llmb.plugin.backend import Peak
from llmb.projection import calibration
from llmb.projection.job import Job, Model
from llmb.projection.step_time import step_time
from llmb.records.interconnect import CollectiveRate
from llmb.records.system import Device
from llmb.supervision.negotiation import Negotiated
from llmb.wire.messages import Terms
from tests.unit.builders_runtime import ceilings, offer, run_config

MODEL = Model(2, 64, 128, 4, 1.0, True, 512, 32)
CONSTANTS = calibration.constants()
#: Of two ranks: a sum of nothing and a large one, a gather, what no step does, a message.
PAIR = {
    2: tuple(
        CollectiveRate(kind=kind, bytes=size, seconds=seconds, bus_bytes_per_second=rate)
        for kind, size, seconds, rate in (
            ("all_reduce", 64, 3e-5, 2e6),
            ("all_reduce", 2**24, 1e-2, 1.6e9),
            ("all_gather", 2**24, 4e-3, 2e9),
            ("broadcast", 2**24, 4e-3, 4e9),
            ("send_receive", 2**24, 2e-3, 8e9),
        )
    )
}


def described(rates=None, *, ranks=1, shares=1, network=None, flops=1e12, peak=None):
    terms = Terms(environment={}, warmup_steps=1, facts={}, peak=peak)
    ceiling = ceilings(flops, flops).before.model_copy(
        update={"memory_bytes_per_second": 1e10, "best_product_flops_per_second": 2 * flops}
    )
    return hardware_of(
        Negotiated(offer(devices=(Device(name="x0"),)), run_config(), terms, (), ""),
        ceiling,
        rates or {},
        ranks=ranks,
        shares=shares,
        memory_bytes=10**10,
        network_bytes_per_second=network,
    )


def seconds(hardware, **layout):
    return step_time(Job(MODEL, **layout), hardware, CONSTANTS)


def test_one_device_has_no_link_and_is_projected_alone():
    found = described()
    assert found.link_bytes_per_second is found.network_bytes_per_second is None
    assert found.sustained_fraction == 0.5
    assert "one device, no link" in found.source
    assert "network: not measured" in found.source
    assert seconds(found).total > 0
    with pytest.raises(UsageError, match="network_bytes_per_second is not known"):
        seconds(found, dp=2)


def test_two_ranks_know_their_links_and_not_the_network():
    found = described(PAIR, ranks=2)
    assert found.link_bytes_per_second == 2e9
    assert found.message_bytes_per_second == 8e9
    assert found.latency_s == 3e-5
    for layout in ({"dp": 2}, {"tp": 2}, {"pp": 2}):
        assert seconds(found, **layout).total > 0


@pytest.mark.parametrize(
    "layout", [{"dp": 4}, {"tp": 4}, {"pp": 2, "dp": 2}, {"dp": 4, "zero": 3}], ids=str
)
def test_more_ranks_than_were_measured_need_the_network(layout: dict[str, int]):
    with pytest.raises(UsageError, match="--network-gbps") as error:
        seconds(described(PAIR, ranks=2), **layout)
    assert "\n" not in str(error.value)
    assert "of 2" in str(error.value)


def test_a_network_that_is_said_is_projected_with():
    said = described(PAIR, ranks=2, network=1e9)
    assert "network: as said by --network-gbps" in said.source
    assert seconds(said, dp=4).data_parallel > 0


def test_a_share_of_a_processor_has_its_share_of_products_and_memory():
    whole, half = described(PAIR, ranks=2), described(PAIR, ranks=2, shares=2)
    assert half.peak_flops == whole.peak_flops / 2
    assert half.memory_bytes_per_second == whole.memory_bytes_per_second / 2
    assert half.sustained_fraction == whole.sustained_fraction
    assert "a share of one processor" in half.source


def test_a_datasheets_peak_counts_where_no_product_was_faster():
    peak = Peak(flops_per_second=4e12, source="datasheet")
    found = described(peak=peak)
    assert (found.peak_flops, found.sustained_fraction) == (4e12, 0.25)
    assert "peak: the datasheet" in found.source


def test_what_is_no_devices_speed_is_one_line():
    with pytest.raises(RunFailedError, match=r"peak_flops is 2.0: .*measure longer") as error:
        described(flops=1.0)
    assert "\n" not in str(error.value)


def test_memory_is_the_devices_or_as_told_and_never_made_up():
    known = offer(devices=(Device(name="x0", memory_bytes=8 * 10**9),))
    assert memory_of(known, 1, None) == 8 * 10**9
    assert memory_of(known, 4, None) == 2 * 10**9
    assert memory_of(known, 4, 3 * 10**9) == 3 * 10**9
    assert memory_of(offer(), 1, None) == 10**12, "what is free, where no device says"
    silent = offer(devices=(Device(name="x0"),), available_memory_bytes=None)
    assert memory_of(silent, 1, 10**9) == 10**9
    with pytest.raises(UsageError, match="memory x0 has: say it with --memory-gb"):
        memory_of(silent, 1, None)
