"""Shares of the cores, and runs that are started, waited for, and ended."""

from __future__ import annotations

import os

import psutil
import pytest

from llmb.errors import RunFailedError
from llmb.node.runs import NodeRun, cores_of, on_cores
from tests.e2e import harness

#: No test waits for so long.
LONG_S = 3600.0
needs_affinity = pytest.mark.skipif(
    not hasattr(os, "sched_getaffinity"), reason="this system does not say which cores it uses"
)


@needs_affinity
@pytest.mark.parametrize("count", [1, 2, 3, 64])
def test_every_rank_has_cores_and_none_is_left_over(count):
    shares, cores = cores_of(count), os.sched_getaffinity(0)
    assert len(shares) == count
    assert all(shares)
    if count <= len(cores):
        assert sorted(core for share in shares for core in share) == sorted(cores)


@needs_affinity
def test_children_run_on_the_cores_and_this_process_has_its_own_again():
    before = os.sched_getaffinity(0)
    first = min(before)
    with on_cores((first,)):
        assert os.sched_getaffinity(0) == {first}
    assert os.sched_getaffinity(0) == before
    with on_cores(()):
        assert os.sched_getaffinity(0) == before


def test_a_run_that_is_refused_says_why(tmp_path):
    with (
        NodeRun(("--workload=none",), tmp_path / "run") as run,
        pytest.raises(RunFailedError) as told,
    ):
        run.record(LONG_S, lambda: None)
    assert "'none'" in str(told.value)
    with NodeRun(("--fly",), tmp_path / "other") as run, pytest.raises(RunFailedError) as told:
        run.record(LONG_S, lambda: None)
    assert "--fly" in str(told.value)


def test_a_run_that_takes_too_long_is_given_up_and_leaves_no_process(tmp_path):
    before = {process.pid for process in psutil.Process().children(recursive=True)}
    waited = []
    run = NodeRun((*harness.TINY_RUN, harness.UNAUDITED), tmp_path / "run")
    with run, pytest.raises(RunFailedError, match="did not end within 1 s"):
        run.record(1.0, lambda: waited.append(1))
    assert waited
    left = [p for p in psutil.Process().children(recursive=True) if p.pid not in before]
    assert [p.cmdline() for p in left if p.status() != psutil.STATUS_ZOMBIE] == []


def test_more_ranks_than_cores_share_them_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {3, 5}, raising=False)
    assert cores_of(5) == ((3,), (5,), (3,), (5,), (3,))
    assert cores_of(2) == ((3,), (5,))
    assert cores_of(1) == ((3, 5),)
