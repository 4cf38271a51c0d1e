"""A job file for Slurm starts the ranks of two nodes; here both are this machine."""

from __future__ import annotations

import sys
from pathlib import Path

from llmb.parallel.jobs import LaunchJob, slurm
from llmb.parallel.place import free_port
from tests import needs
from tests.e2e import harness

#: What a cluster has: each node runs the step with its own number.
SLURM = """\
scontrol() { echo localhost; }
srun() {
    SLURM_NODEID=1 "$@" &
    SLURM_NODEID=0 "$@"
    wait $!
}
SLURM_NNODES=2 SLURM_JOB_NODELIST=here
"""


def test_the_ranks_of_two_nodes_meet_and_run(tmp_path: Path) -> None:
    bash = needs.program("bash")
    flags = ("--plugin=cpu", "--precision=FP32", *harness.TINY_RUN, harness.UNAUDITED, "--quiet")
    arguments = ("run", *flags, "--dp-shard=2", f"--output-dir={tmp_path / 'out'}")
    text = slurm(LaunchJob(2, 1, arguments)).replace("29500", str(free_port()))
    script = tmp_path / "job.sh"
    script.write_text(text.replace("set -euo pipefail\n", f"set -euo pipefail\n{SLURM}"))
    torchrun = tmp_path / "bin" / "torchrun"
    torchrun.parent.mkdir()
    torchrun.write_text(f'#!/bin/sh\nexec {sys.executable} -m torch.distributed.run "$@"\n')
    torchrun.chmod(0o755)
    env = harness.environment()
    env["PATH"] = f"{torchrun.parent}:{env['PATH']}"
    ended = harness.ended([bash, str(script)], tmp_path / "out", env, tmp_path)
    assert ended.code == 0, ended.stderr
    assert ended.record["topology"]["world_size"] == 2
