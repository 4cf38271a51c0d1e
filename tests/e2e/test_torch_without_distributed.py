"""A torch that was built without distributed runs one process; whoever asks for ranks is told."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.e2e import harness

WITHOUT = Path(__file__).parent.parent / "plugins" / "no_distributed"


def test_every_plugin_can_be_loaded() -> None:
    done = harness.call("plugin", "list", "--json", env=harness.environment(WITHOUT))
    assert done.code == 0, done.stderr
    offers = {offer["plugin"]: offer for offer in json.loads(done.stdout)}
    assert offers["cpu"]["available"] is True
    assert "sees no accelerator" in offers["generic"]["reason"]


def test_a_run_of_one_process_is_audited_as_ever(tmp_path: Path) -> None:
    flags = ("--plugin=cpu", "--precision=FP32", *harness.TINY_RUN)
    done = harness.run(tmp_path / "out", *flags, plugins=[WITHOUT])
    assert (done.code, done.said) == (0, [])
    assert done.record["audit"]["verdict"] == "CONSISTENT"


@pytest.mark.parametrize(
    "arguments",
    [("run", "--quiet", "--preset=debug", "--nproc=2"), ("simulate", "--workload=alcf-1t")],
    ids=["nproc", "simulate"],
)
def test_ranks_are_refused_in_a_line(arguments: tuple[str, ...], tmp_path: Path) -> None:
    done = harness.call(*arguments, env=harness.environment(WITHOUT), cwd=tmp_path)
    assert (done.code, done.stdout, len(done.said)) == (3, "", 1), done.stderr
    assert "this torch cannot" in done.said[0]


def test_a_rank_that_a_launcher_starts_is_told_as_well(tmp_path: Path) -> None:
    place = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
    flags = ("--plugin=cpu", "--precision=FP32", *harness.TINY_RUN, harness.UNAUDITED)
    done = harness.run(tmp_path / "out", *flags, plugins=[WITHOUT], **place)
    assert (done.code, len(done.said)) == (3, 1), done.stderr
    assert "this torch was built without distributed: use one rank" in done.said[0]
