"""What ranks train together is what one process trains, to the last digits of FP64."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from llmb.parallel.place import free_port
from tests import needs, patience
from tests.distributed.parity import case_names
from tests.e2e import harness

#: Relative. Sums in another order differ by some units of 1e-16; a wrong one by far more.
LIMIT = 1e-12


@pytest.fixture(scope="module", params=[4, pytest.param(8, marks=pytest.mark.long)])
def compared(request, tmp_path_factory):
    """World size and what ``parity.py`` found with as many ranks."""
    needs.has_package("thunder")  # without it there are fewer cases
    world_size = request.param
    output = tmp_path_factory.mktemp("parity") / "found.json"
    script = Path(__file__).with_name("parity.py")
    arguments = [str(world_size), str(free_port()), str(output)]
    root = str(Path(__file__).resolve().parents[2])
    env = harness.environment(Path(root), OMP_NUM_THREADS="1")
    ranks = [
        subprocess.Popen(
            [sys.executable, str(script), str(rank), *arguments],
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=os.path.dirname(output),
        )
        for rank in range(world_size)
    ]
    done = patience.finished(ranks)
    assert [rank.returncode for rank in done] == [0] * world_size, done[0].stdout
    return world_size, json.loads(output.read_text())


def test_every_mode_was_compared(compared):
    world_size, found = compared
    assert list(found) == case_names(world_size)


@pytest.mark.parametrize("what", ["loss", "gradient", "parameter"])
def test_losses_gradients_and_parameters_are_those_of_one_process(compared, what):
    world_size, found = compared
    far = {name: each[what] for name, each in found.items() if not each[what] <= LIMIT}
    assert not far, f"{world_size} ranks"


def test_elements_read_where_they_lie_are_those_of_the_whole(compared):
    _, found = compared
    assert {name: each["missampled"] for name, each in found.items() if each["missampled"]} == {}


def test_ranks_did_share_the_work_and_not_each_do_all_of_it(compared):
    """Equal results prove nothing where no rank left anything to another."""
    _, found = compared
    for name, each in found.items():
        if not name.startswith("DDP"):
            assert each["share"] < 0.6, name
