"""Job files say what was asked for, and are what their readers can read."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from llmb.parallel.jobs import SCHEDULERS, LaunchJob, with_output
from tests import needs

HOSTILE = ("run", "--workload", 'a b\'; rm -rf "$HOME" #', "--dp-shard", "8")


def job(*arguments: str, nodes: int = 2) -> LaunchJob:
    return LaunchJob(nodes, 4, arguments or ("run", "--dp-shard", "8"), minutes=90)


def test_slurm_starts_torchrun_once_a_node_and_restarts_nothing() -> None:
    text = SCHEDULERS["slurm"](job())
    for words in (
        "#SBATCH --nodes=2\n",
        "#SBATCH --ntasks-per-node=1\n",
        "#SBATCH --time=01:30:00\n",
        "--nproc-per-node=4 --max-restarts=0",
        '--master-addr="$first" --master-port=29500',
        '--node-rank="$SLURM_NODEID"',
        "-m llmb run --dp-shard 8\n",
    ):
        assert words in text


def test_pbs_starts_every_rank_and_says_where_they_meet() -> None:
    text = SCHEDULERS["pbs"](job())
    assert "mpiexec -n 8 --ppn 4 llmb run --dp-shard 8\n" in text
    assert "export MASTER_ADDR MASTER_PORT" in text
    assert "#PBS -l walltime=01:30:00\n" in text


@pytest.mark.parametrize(("nodes", "workers"), [(1, []), (3, ["2"])])
def test_kubernetes_has_one_master_and_the_rest_are_workers(nodes: int, workers: list[str]) -> None:
    text = SCHEDULERS["k8s"](job(nodes=nodes))
    assert "activeDeadlineSeconds: 5400" in text
    assert re.findall(r"Master:\n +replicas: (\d+)", text) == ["1"]
    assert re.findall(r"Worker:\n +replicas: (\d+)", text) == workers
    assert 'nprocPerNode: "4"' in text
    assert '["-m", "llmb", "run", "--dp-shard", "8"]' in text
    assert "backoffLimit: 0" in text
    assert "limits" not in text
    named = LaunchJob(nodes, 4, ("run",), resource="vendor.example/gpu")
    assert SCHEDULERS["k8s"](named).count("vendor.example/gpu: 4") == min(nodes, 2)


@pytest.mark.parametrize("scheduler", ["slurm", "pbs"])
@pytest.mark.parametrize("arguments", [("run",), HOSTILE], ids=["plain", "hostile"])
def test_scripts_are_clean_shell_that_passes_arguments_on_as_they_are(
    tmp_path: Path, scheduler: str, arguments: tuple[str, ...]
) -> None:
    script = tmp_path / "job.sh"
    # What would start ranks prints its last words instead.
    text = SCHEDULERS[scheduler](job(*arguments))
    script.write_text(text)
    assert subprocess.run(["bash", "-n", script], check=False).returncode == 0
    if needs.has_program("shellcheck"):
        done = subprocess.run(
            ["shellcheck", "--exclude=SC2016", script], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout
    fakes = 'srun() { printf "%s\\n" "$@"; }; mpiexec() { printf "%s\\n" "$@"; }\n'
    fakes += "scontrol() { echo node0; }; export PBS_O_WORKDIR=. PBS_NODEFILE=/dev/null\n"
    fakes += "export SLURM_JOB_NODELIST=n SLURM_NNODES=2 SLURM_JOB_ID=7\n"
    said = subprocess.run(
        ["bash", "-c", fakes + text], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    assert said[-len(arguments) :] == list(arguments)


def test_arguments_that_begin_with_an_option_are_those_of_run() -> None:
    assert with_output(("--tp", "8")) == ("run", "--tp", "8")
    assert with_output(()) == ("run",)
    assert with_output(("sweep",)) == ("sweep",)
