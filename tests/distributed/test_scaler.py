"""Ranks that share a model leave a step out together, whichever of them has met an overflow."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.distributed.test_equal_to_one_process import free_port
from tests.e2e import harness

pytestmark = [pytest.mark.distributed, pytest.mark.slow]


def test_an_overflow_in_one_ranks_shard_leaves_the_step_out_on_all(tmp_path: Path) -> None:
    script, output = Path(__file__).with_name("scaler.py"), tmp_path / "found.json"
    root = Path(__file__).resolve().parents[2]
    port = free_port()
    ranks = [
        subprocess.Popen(
            [sys.executable, str(script), str(rank), str(port), str(output)],
            env=harness.environment(root),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=tmp_path,
        )
        for rank in range(2)
    ]
    said = [rank.communicate(timeout=harness.LIMIT_S)[0] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], said
    for left_out, taken in json.loads(output.read_text()):
        assert left_out == {"scale": 4.0, "weight": 1.0}
        assert taken == {"scale": 8.0, "weight": pytest.approx(0.5)}
