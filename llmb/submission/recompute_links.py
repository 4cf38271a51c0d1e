"""The second path for the bandwidths between ranks: each figure again from bytes and rounds.

Definitions: nccl-tests, doc/PERFORMANCE.md. The algorithm bandwidth is the size over the time. The
bus bandwidth counts the bytes that cross each link: of n ranks in a ring, an all-reduce sends each
of n parts 2(n-1) times, and an all-gather n-1 times.
"""

from __future__ import annotations

from fractions import Fraction

from llmb.records.interconnect import CollectiveRate
from llmb.records.run_record import RunRecord
from llmb.submission.comparison import RecordComparison

#: Collective -> times that each of the n parts of a tensor crosses a link, over n - 1.
_CROSSINGS = {"all_reduce": 2, "all_gather": 1}


def compare_links(record: RunRecord, comparison: RecordComparison) -> None:
    """Compare the bandwidths between ranks with their rounds, and the hosts with the ranks."""
    found, ranks = record.interconnect, record.topology.ranks
    if found is None:
        return
    several = record.topology.world_size > 1
    comparison.require("interconnect", "present", several, "absent from a run of one rank")
    measured = bool(found.rates)
    comparison.expect("interconnect.library is told", found.library is not None, measured)
    taken = [(rate.kind, rate.bytes) for rate in found.rates]
    once = len(taken) == len(set(taken))
    comparison.require("interconnect.rates", len(taken), once, "each collective and size once")
    for n, rate in enumerate(found.rates):
        _compare_rate(f"interconnect.rates.{n}", rate, record.topology.world_size, comparison)
    hosts: dict[str, list[int]] = {}
    for rank in ranks:
        hosts.setdefault(rank.host, []).append(rank.rank)
    # Ranks whose host is not known, after a worker's death, fit on any host.
    told = [sorted(host.ranks) for host in found.hosts if host.ranks]
    if told and "" not in hosts:
        comparison.expect("interconnect.hosts.*.ranks", sorted(told), sorted(hosts.values()))


def _compare_rate(
    field: str, rate: CollectiveRate, ranks: int, comparison: RecordComparison
) -> None:
    known = rate.kind in _CROSSINGS
    must = f"one of {', '.join(_CROSSINGS)}"
    if not comparison.require(f"{field}.kind", rate.kind, known, must):
        return
    rounds = sorted(rate.rounds_s)
    positive = bool(rounds) and rounds[0] > 0
    if not comparison.require(f"{field}.rounds_s", rate.rounds_s, positive, "positive times"):
        return
    middle = len(rounds) // 2
    median = rounds[middle] if len(rounds) % 2 else (rounds[middle - 1] + rounds[middle]) / 2
    comparison.expect(f"{field}.seconds", rate.seconds, median)
    comparison.expect(f"{field}.bytes_per_second", rate.bytes_per_second, rate.bytes / median)
    if ranks < 1:
        return  # noted before
    part = Fraction(rate.bytes, ranks)
    crossed = float(part * _CROSSINGS[rate.kind] * (ranks - 1))
    comparison.expect(f"{field}.bus_bytes_per_second", rate.bus_bytes_per_second, crossed / median)
