"""Checks a record's statements on ranks against the evidence of the ranks' workers."""

from __future__ import annotations

from collections.abc import Iterator

from llmb.records import evidence
from llmb.records.bundle import Bundle
from llmb.records.run_record import Rank, RunRecord
from llmb.submission import rejudge


def faults(bundle: Bundle, record: RunRecord) -> Iterator[str]:
    """Yield a sentence for each contradiction between ``record`` and the evidence of ranks.

    The number of ranks is compared with the mesh in another check, from the record alone.

    Raises:
        BundleRefusedError: this llmb does not write such evidence of ranks.
    """
    ranks, nodes = record.topology.ranks, record.topology.nodes
    hosts = {rank.host for rank in ranks if rank.host}
    if len(hosts) != nodes:
        yield f"the record has {nodes} nodes, and ranks on {len(hosts)} hosts"
    for repeat in range(len(record.timing.repeats)):
        path = evidence.path(repeat, evidence.RANKS)
        if path not in bundle.files:
            if repeat == record.timing.headline_repeat and any(map(_is_told, ranks[1:])):
                yield f"{path} is missing, and the record knows of other ranks"
        elif len(ranks) == 1:
            yield f"{path} is of several ranks, and the record has one"
        else:
            seen = rejudge.load(bundle, repeat, evidence.RANKS, evidence.RanksEvidence)
            yield from _differences(record, repeat, seen.ranks)
            measured = record.interconnect and record.interconnect.library
            if repeat == record.timing.headline_repeat and measured not in (None, seen.library):
                yield f"{path} is of library {seen.library!r}, and {measured!r} was measured"


def _is_told(rank: Rank) -> bool:
    return bool(rank.host or rank.device or rank.fence_ns)


def _differences(
    record: RunRecord, repeat: int, seen: tuple[evidence.RankEvidence, ...]
) -> Iterator[str]:
    """Yield the differences between the ranks of ``repeat`` and the record's ranks."""
    stated = record.topology.ranks
    if len(seen) != len(stated):
        yield f"repeat {repeat} had {len(seen)} ranks, the record has {len(stated)}"
        return
    count = len(record.timing.fence_ns)
    headline = repeat == record.timing.headline_repeat
    for number, (found, said) in enumerate(zip(seen, stated, strict=True)):
        where = f"rank {number} of repeat {repeat}"
        if found.rank != number:
            yield f"{where} calls itself {found.rank}"
        if (found.host, found.device) != (said.host, said.device):
            yield f"{where} was on {found.device!r} of host {found.host!r}, not as in the record"
        if headline and found.alone_s != said.alone_s:
            yield f"{where} took {found.alone_s} s for a step alone, in the record {said.alone_s}"
        # The supervisor recorded rank 0's fences; another check compares them with the window.
        if headline and number > 0:
            if found.fence_ns[:count] != said.fence_ns:
                yield f"{where} did not see the fences of the record"
            if found.peak_memory_bytes != said.peak_memory_bytes:
                yield f"{where} had another peak of memory than in the record"
