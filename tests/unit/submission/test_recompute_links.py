"""Bandwidths between ranks: nccl-tests' factors by both paths, and every edited figure is found."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Any

import pytest

from llmb.config import Parallelism
from llmb.parallel.bandwidth import rate_of
from llmb.records.declared import DECLARED
from llmb.records.interconnect import HostLinks, Interconnect
from llmb.records.run_record import RunRecord
from llmb.submission.comparison import RecordComparison
from llmb.submission.recompute_links import compare_links
from tests.builders import make_record

#: nccl-tests' table of factors for 2, 4 and 8 ranks: bus bandwidth over algorithm bandwidth.
FACTORS = {"all_reduce": (1.0, 1.5, 1.75), "all_gather": (0.5, 0.75, 0.875)}
ROUNDS = (0.002, 0.001, 0.004, 0.0015, 0.003)


def record_of(ranks: int) -> RunRecord:
    """Return the record of ``ranks`` ranks on two hosts, with honest rates by the first path."""
    record = make_record(repeats=1)
    first = record.topology.ranks[0]
    every = [
        first.model_copy(update={"rank": n, "host": "ab"[2 * n // ranks] * 12})
        for n in range(ranks)
    ]
    update = {
        "world_size": ranks,
        "nodes": 2,
        "devices_per_node": ranks // 2,
        "parallelism": Parallelism(dp_replicate=ranks),
        "ranks": tuple(every),
    }
    rates = [rate_of(kind, size, ranks, 3, ROUNDS) for kind in FACTORS for size in (64, 2**24)]
    half = ranks // 2
    hosts = (HostLinks(ranks=tuple(range(half))), HostLinks(ranks=tuple(range(half, ranks))))
    return record.model_copy(
        update={
            "topology": record.topology.model_copy(update=update),
            "interconnect": Interconnect(
                library="nccl", with_plugin=True, seconds=1.0, rates=tuple(rates), hosts=hosts
            ),
        }
    )


def found_in(record: RunRecord, **changes: Any) -> list[str]:
    """Return the fields found wrong in ``record`` with other values in the interconnect."""
    data = record.model_dump(by_alias=True)
    for path, value in changes.items():
        *folders, name = path.split("__")
        at = data["interconnect"]
        for key in folders:
            at = at[int(key) if key.isdecimal() else key]
        at[name] = value
    comparison = RecordComparison()
    compare_links(RunRecord.model_validate(data), comparison)
    return [mismatch.field for mismatch in comparison.mismatches]


@pytest.mark.parametrize(("n", "ranks"), [(0, 2), (1, 4), (2, 8)])
def test_both_paths_have_the_factors_of_nccl_tests(n: int, ranks: int) -> None:
    record = record_of(ranks)
    assert record.interconnect is not None
    for rate in record.interconnect.rates:
        assert rate.seconds == 0.002
        assert rate.bytes_per_second == rate.bytes / 0.002
        assert rate.bus_bytes_per_second == rate.bytes_per_second * FACTORS[rate.kind][n]
    assert found_in(record) == []


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"rates__1__bus_bytes_per_second": 1e12}, "rates.1.bus_bytes_per_second"),
        ({"rates__1__bytes_per_second": None}, "rates.1.bytes_per_second"),
        ({"rates__0__seconds": 0.0015}, "rates.0.seconds"),
        ({"rates__0__rounds_s": ()}, "rates.0.rounds_s"),
        ({"rates__0__rounds_s": (-1.0, 0.002, 0.002)}, "rates.0.rounds_s"),
        ({"rates__0__kind": "broadcast"}, "rates.0.kind"),
        ({"rates__1__bytes": 64}, "rates"),
        ({"library": None}, "library is told"),
        ({"hosts__0__ranks": (0, 1, 2)}, "hosts.*.ranks"),
        ({"hosts__1__ranks": (2,)}, "hosts.*.ranks"),
    ],
)
def test_an_edited_figure_is_found(changes: dict[str, Any], field: str) -> None:
    assert f"interconnect.{field}" in found_in(record_of(4), **changes)


def test_a_run_of_one_rank_has_no_links_and_an_unmeasured_run_is_sound() -> None:
    alone = make_record(repeats=1)
    links = Interconnect(with_plugin=False, seconds=1.0)
    assert found_in(alone.model_copy(update={"interconnect": links})) == ["interconnect"]
    assert found_in(record_of(4), rates=(), library=None, hosts=({},)) == []


def test_declared_fields_are_those_of_another_value_that_passes() -> None:
    numa = ({"node": 0, "cores": 9},)
    other = {
        "with_plugin": False,
        "seconds": 9.0,
        "rates__0__calls": 9,
        "rates__0__rounds_s": (0.0019, *ROUNDS[:1], 0.004),
        "hosts__0__numa": numa,
        "hosts__0__devices": (),
        "hosts__0__cards": (),
        "hosts__0__between_devices": {"tool": "another", "devices": 1},
    }
    assert found_in(record_of(4), **other) == []
    names = ["interconnect." + path.replace("__", ".") for path in other]
    declared = [name for name in DECLARED if name.startswith("interconnect.")]
    assert [one for one in names if not any(fnmatchcase(one, each) for each in declared)] == []
    assert [each for each in declared if not any(fnmatchcase(one, each) for one in names)] == []
