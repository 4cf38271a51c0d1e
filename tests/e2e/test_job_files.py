"""Job files start the ranks of two nodes; here both are this machine."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from llmb.parallel.jobs.job import LaunchJob
from llmb.parallel.jobs.kinds import SCHEDULERS
from llmb.parallel.jobs.site import Site
from llmb.parallel.place import free_port
from tests import needs, patience
from tests.e2e import harness

#: What a cluster has: each node runs the step with its own number.
SLURM = """\
scontrol() { echo localhost; }
srun() {
    shift 2  # its own options
    SLURM_NODEID=1 "$@" &
    SLURM_NODEID=0 "$@"
    wait $!
}
SLURM_NNODES=2 SLURM_JOB_NODELIST=here
"""
TORCHRUN = [sys.executable, "-m", "torch.distributed.run"]


def written(kind: str, folder: Path, site: Site | None = None) -> str:
    """Return a job file of two nodes with one rank each, which meet at a port that is free here."""
    flags = ("--plugin=cpu", "--precision=FP32", *harness.TINY_RUN, harness.UNAUDITED, "--quiet")
    arguments = ("run", *flags, "--dp-shard=2", f"--output-dir={folder / 'out'}")
    job = LaunchJob(2, 1, arguments, site=site or Site())
    return SCHEDULERS[kind].write(job).replace("29500", str(free_port()))


def environment(folder: Path) -> dict[str, str]:
    """Return an environment that has torchrun, whether or not its script is on the PATH."""
    torchrun = folder / "bin" / "torchrun"
    torchrun.parent.mkdir()
    torchrun.write_text(f'#!/bin/sh\nexec {" ".join(TORCHRUN)} "$@"\n')
    torchrun.chmod(0o755)
    env = harness.environment()
    return {**env, "PATH": f"{torchrun.parent}:{env['PATH']}"}


def check_two_ranks_ran(
    folder: Path, commands: Sequence[Sequence[str]], envs: Sequence[Mapping[str, str]]
) -> None:
    """Start what each node would, and look for the record of two ranks."""
    said = [(folder / f"said{number}").open("w+b") for number in range(len(commands))]
    nodes = [
        subprocess.Popen(command, env=env, cwd=folder, stdout=file, stderr=file)
        for command, env, file in zip(commands, envs, said, strict=True)
    ]
    codes = [patience.ended(node, output=folder) for node in nodes]
    texts = []
    for file in said:
        with file:
            file.seek(0)
            texts.append(file.read().decode())
    assert codes == [0] * len(nodes), texts
    ended = harness.Ended(0, "", "", folder / "out")
    assert ended.record["topology"]["world_size"] == 2


def test_the_ranks_of_two_nodes_of_slurm_meet_and_run(tmp_path: Path) -> None:
    text = written("slurm", tmp_path)
    script = tmp_path / "job.sh"
    script.write_text(text.replace("set -euo pipefail\n", f"set -euo pipefail\n{SLURM}"))
    command = [needs.program("bash"), str(script)]
    check_two_ranks_ran(tmp_path, [command], [environment(tmp_path)])


def test_the_lines_for_machines_without_a_scheduler_start_ranks_that_meet(tmp_path: Path) -> None:
    text = written("torchrun", tmp_path)
    (tmp_path / "FILE").write_text(text)
    lines = [line.partition(":  ")[2] for line in text.splitlines() if ":  bash FILE" in line]
    commands = [line.replace("HOST0", "localhost").split() for line in lines]
    assert len(commands) == 2
    check_two_ranks_ran(tmp_path, commands, [environment(tmp_path)] * 2)


def test_the_pods_of_a_jobset_start_ranks_that_meet(tmp_path: Path) -> None:
    yaml = needs.module("yaml")
    (document,) = yaml.safe_load_all(written("jobset", tmp_path, Site(image="llmb")))
    (replicated,) = document["spec"]["replicatedJobs"]
    (container,) = replicated["template"]["spec"]["template"]["spec"]["containers"]
    base = environment(tmp_path)
    #: The name that the headless service gives to the first pod, and the number of each.
    named = {each["name"]: each.get("value") for each in container["env"]}
    assert named["PET_MASTER_ADDR"] == "llmb-node-0-0.llmb"
    envs = [
        base | named | {"PET_MASTER_ADDR": "localhost", "PET_NODE_RANK": str(node)}
        for node in range(2)
    ]
    check_two_ranks_ran(tmp_path, [[*container["command"], *container["args"]]] * 2, envs)
