"""Ranks that somebody else starts: torchrun and mpiexec, each for real."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from llmb.parallel.place import free_port
from tests import needs
from tests.e2e import harness
from tests.e2e.harness import Ended

RUN = ("-m", "llmb", "run", "--quiet", *harness.with_plugin("odd"), harness.UNAUDITED)


def launched(tmp_path: Path, command: Sequence[str], **env: str) -> Ended:
    folder = harness.plugin(tmp_path / "plugins", "odd")
    whole = [*command, *RUN, f"--output-dir={tmp_path / 'out'}"]
    return harness.ended(whole, tmp_path / "out", harness.environment(folder, **env), None)


def test_torchrun_starts_the_ranks(tmp_path: Path) -> None:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    ended = launched(tmp_path, [*torchrun, "--nproc-per-node=2"])
    assert ended.code == 0, ended.stderr
    assert [rank["rank"] for rank in ended.record["topology"]["ranks"]] == [0, 1]


def test_mpiexec_starts_the_ranks(tmp_path: Path) -> None:
    needs.program("mpiexec")
    flavour = subprocess.run(["mpiexec", "--version"], capture_output=True, text=True, check=False)
    # Open MPI refuses root, and more ranks than cores.
    mine = ["--allow-run-as-root", "--oversubscribe"] if "Open MPI" in flavour.stdout else []
    port = free_port()
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    ended = launched(tmp_path, ["mpiexec", *mine, "-n", "2", sys.executable], **meeting)
    assert ended.code == 0, ended.stderr
    assert [rank["rank"] for rank in ended.record["topology"]["ranks"]] == [0, 1]
