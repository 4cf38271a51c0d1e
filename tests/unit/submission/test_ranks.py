"""What a record says of its ranks is what their evidence says, or the bundle is refused."""

from __future__ import annotations

from typing import Any

import pytest

from llmb.config import Parallelism
from llmb.records import evidence
from llmb.records.bundle import Bundle, from_files
from llmb.records.canonical import pretty_bytes
from llmb.records.interconnect import Interconnect
from llmb.records.run_record import Rank, RunRecord
from llmb.submission import ranks
from tests import builders
from tests.builders import with_manifest

REPEATS = 2
#: Two replicas on one host, as their workers saw them.
SEEN = tuple(
    evidence.RankEvidence(
        rank=number,
        host="0123456789ab",
        device=f"fast:{number}",
        peak_memory_bytes=10**9 + number,
        fence_ns=tuple(range(number, 40 + number)),
        alone_s=0.5 + number,
    )
    for number in range(2)
)


def record_of(*seen: evidence.RankEvidence) -> RunRecord:
    """Return the record that an honest supervisor makes of two ranks."""
    record = builders.make_record(repeats=REPEATS)
    count = len(record.timing.fence_ns)
    first = record.topology.ranks[0].model_copy(update={"alone_s": seen[0].alone_s})
    others = [
        Rank.model_validate({**one.model_dump(), "fence_ns": one.fence_ns[:count]})
        for one in seen[1:]
    ]
    mesh = Parallelism(dp_replicate=len(seen))
    topology = record.topology.model_copy(
        update={
            "ranks": (first, *others),
            "world_size": len(seen),
            "devices_per_node": len(seen),
            "parallelism": mesh,
        }
    )
    return record.model_copy(update={"topology": topology})


def bundle_of(record: RunRecord, *seen: evidence.RankEvidence, but: int | None = None) -> Bundle:
    """Return a bundle with this evidence of every repeat, ``but`` for one."""
    files = builders.run_files(record)
    text = pretty_bytes(evidence.RanksEvidence(ranks=seen, collectives=(), library="nccl"))
    left = {evidence.path(n, evidence.RANKS): text for n in range(REPEATS) if n != but}
    return from_files(with_manifest(files | left))


RECORD = record_of(*SEEN)


def faults(record: RunRecord, bundle: Bundle) -> list[str]:
    return list(ranks.faults(bundle, record))


def test_ranks_that_are_those_of_their_evidence_are_in_order() -> None:
    assert faults(RECORD, bundle_of(RECORD, *SEEN)) == []
    alone = builders.make_record(repeats=REPEATS)
    assert faults(alone, from_files(with_manifest(builders.run_files(alone)))) == []


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"rank": 0}, "rank 1 of repeat 0 calls itself 0"),
        ({"host": "ba9876543210"}, "was on 'fast:1' of host 'ba9876543210'"),
        ({"device": "fast:0"}, "was on 'fast:0'"),
        ({"peak_memory_bytes": 5}, "another peak of memory"),
        ({"fence_ns": tuple(range(40))}, "did not see the fences"),
        ({"alone_s": 0.25}, "took 0.25 s for a step alone, in the record 1.5"),
    ],
)
def test_a_rank_that_its_evidence_contradicts_is_named(change: dict[str, Any], words: str) -> None:
    other = (SEEN[0], SEEN[1].model_copy(update=change))
    assert words in " ".join(faults(RECORD, bundle_of(RECORD, *other)))


def test_more_or_fewer_ranks_than_took_part_are_found() -> None:
    (fault, *_) = faults(RECORD, bundle_of(RECORD, *SEEN, SEEN[1]))
    assert fault == "repeat 0 had 3 ranks, the record has 2"
    alone = builders.make_record(repeats=REPEATS)
    assert "is of several ranks" in faults(alone, bundle_of(alone, *SEEN))[0]


def test_hosts_are_as_many_as_nodes() -> None:
    moved = (SEEN[0], SEEN[1].model_copy(update={"host": "ba9876543210"}))
    record = record_of(*moved)
    assert faults(record, bundle_of(record, *moved)) == [
        "the record has 1 nodes, and ranks on 2 hosts"
    ]


def test_without_evidence_of_the_headline_nothing_is_known_of_other_ranks() -> None:
    headline = RECORD.timing.headline_repeat
    assert "is missing" in faults(RECORD, bundle_of(RECORD, *SEEN, but=headline))[0]
    assert faults(RECORD, bundle_of(RECORD, *SEEN, but=1 - headline)) == []
    unknown = Rank(rank=1, host="", device="", peak_memory_bytes=None, fence_ns=())
    first = RECORD.topology.ranks[0]
    topology = RECORD.topology.model_copy(update={"ranks": (first, unknown)})
    lost = RECORD.model_copy(update={"topology": topology})
    assert faults(lost, from_files(with_manifest(builders.run_files(lost)))) == []


def test_more_nodes_than_hosts_are_found_as_well() -> None:
    record = record_of(*SEEN)
    topology = record.topology.model_copy(update={"nodes": 2})
    more = record.model_copy(update={"topology": topology})
    assert faults(more, bundle_of(more, *SEEN)) == ["the record has 2 nodes, and ranks on 1 hosts"]


def linked(library: str) -> RunRecord:
    found = Interconnect(library=library, with_plugin=True, seconds=1.0)
    return RECORD.model_copy(update={"interconnect": found})


def test_links_are_measured_with_the_library_of_the_run() -> None:
    assert faults(linked("nccl"), bundle_of(linked("nccl"), *SEEN)) == []
    (fault,) = faults(linked("gloo"), bundle_of(linked("gloo"), *SEEN))
    assert fault.endswith("is of library 'nccl', and 'gloo' was measured")
