"""What ranks of one model have alike, and what is each replica's own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from llmb.parallel.place import free_port
from tests import patience
from tests.e2e import harness


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> list[dict]:
    """What ``alike.py`` found in each of two ranks."""
    folder = tmp_path_factory.mktemp("alike")
    script, output = Path(__file__).with_name("alike.py"), folder / "found.json"
    root = Path(__file__).resolve().parents[2]
    port = free_port()
    ranks = [
        subprocess.Popen(
            [sys.executable, str(script), str(rank), str(port), str(output)],
            env=harness.environment(root),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=folder,
        )
        for rank in range(2)
    ]
    done = patience.finished(ranks)
    assert [rank.returncode for rank in done] == [0, 0], done
    found: list[dict] = json.loads(output.read_text())
    return found


def test_an_overflow_in_one_ranks_shard_leaves_the_step_out_on_all(both: list[dict]) -> None:
    for left_out, taken in (rank["steps"] for rank in both):
        assert left_out == {"scale": 4.0, "weight": 1.0}
        assert taken == {"scale": 8.0, "weight": pytest.approx(0.5)}


def test_replicas_draw_their_own_masks_and_ranks_of_one_replica_the_same(both: list[dict]) -> None:
    first, second = (rank["masks"] for rank in both)
    assert first["tp"] == second["tp"]
    assert first["dp_replicate"] != second["dp_replicate"]
    assert first["dp_shard"] != second["dp_shard"]
