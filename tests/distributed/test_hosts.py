"""One run over hosts with addresses of their own, and what becomes of it when one is cut off."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.distributed import hosts
from tests.distributed.hosts import Host
from tests.e2e import harness

FLAGS = ("--plugin=cpu", "--precision=FP32", *harness.TINY, "--batch-size=1", harness.UNAUDITED)


@pytest.fixture(scope="module", autouse=True)
def possible() -> None:
    reason = hosts.obstacle()
    if reason is not None:
        pytest.skip(reason)


@pytest.fixture
def two(tmp_path: Path) -> Iterator[list[Host]]:
    with hosts.hosts(2, tmp_path) as made:
        yield made


@pytest.mark.parametrize("rendezvous", ["c10d", "static"])
def test_two_hosts_make_one_run_whose_record_tells_them_apart(
    two: list[Host], tmp_path: Path, rendezvous: str
) -> None:
    with hosts.torchrun(two, tmp_path, rendezvous, *FLAGS, "--timed-steps=20") as launched:
        codes = [each.wait() for each in launched]
        assert codes == [0, 0], [each.stderr for each in launched]
        assert [each.family() for each in launched] == [[], []]
    (run,) = filter(Path.is_dir, launched[0].output.iterdir())
    topology = json.loads((run / "record.json").read_bytes())["topology"]
    assert (topology["nodes"], topology["devices_per_node"], topology["world_size"]) == (2, 1, 2)
    assert [rank["rank"] for rank in topology["ranks"]] == [0, 1]
    assert len({rank["host"] for rank in topology["ranks"]}) == 2
    assert not launched[1].output.exists(), "the record is rank 0's"


@pytest.mark.parametrize("lost", [0, 1])
def test_a_host_that_is_cut_off_ends_the_run_on_both_and_each_names_the_other(
    two: list[Host], tmp_path: Path, lost: int
) -> None:
    # Static: the agents of the other rendezvous go on asking one another for minutes.
    flags = (*FLAGS, "--timed-steps=100000", "--rank-timeout=8")
    with hosts.torchrun(two, tmp_path, "static", *flags) as launched:
        hosts.wait_until(lambda: "first step done" in launched[0].stderr, launched)
        two[lost].cut_off()
        for each in launched:
            each.wait()
            assert "exitcode  : 4" in each.stderr
            assert each.family() == []
    first, second = (each.stderr for each in launched)
    assert "llmb: rank 1 ended while the others were at work, or cannot be reached" in first
    assert "llmb: rank 1: rank 0 is gone, or its host cannot be reached" in second
    (run,) = launched[0].output.iterdir()
    assert "the run did not finish: rank 1 ended while" in (run / "log.txt").read_text()
    assert not (run / "record.json").exists()
    assert not launched[1].output.exists()
