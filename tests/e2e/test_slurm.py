"""Job files under a real Slurm: it accepts them, runs them on two nodes, and warns llmb early."""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from llmb.parallel.place import free_port
from tests import patience
from tests.e2e import harness, slurm_cluster
from tests.e2e.slurm_cluster import Cluster

pytestmark = pytest.mark.long
RUN = ("run", "--device=cpu", "--precision=FP32", *harness.TINY_RUN)
RUN += ("--dp-shard=2", "--output-dir=out")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with slurm_cluster.running(tmp_path_factory.mktemp("slurm")) as started:
        yield started


def job_file(folder: Path, *words: str) -> Path:
    """Return the file that ``llmb launch`` writes, with a port that is free here."""
    file = folder / "job.sh"
    done = harness.call("launch", "--print", "slurm", "--output", file, *words, cwd=folder)
    assert done.code == 0, done.stderr
    file.write_text(file.read_text().replace("29500", str(free_port())))
    return file


class Submitted:
    """A job that was given to Slurm, in the folder in which it runs."""

    def __init__(self, cluster: Cluster, file: Path) -> None:
        self.folder = file.parent
        self.said = self.folder / "said"
        program = self.folder / "bin" / "torchrun"
        program.parent.mkdir()
        program.write_text(f'#!/bin/sh\nexec {sys.executable} -m torch.distributed.run "$@"\n')
        program.chmod(0o755)
        env = {**harness.environment(), "SLURM_CONF": cluster.environment["SLURM_CONF"]}
        env["PATH"] = f"{program.parent}:{env['PATH']}"
        submit = ["sbatch", "--parsable", "--wait", f"--output={self.said}", str(file)]
        self.process = subprocess.Popen(
            submit, env=env, cwd=self.folder, stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        with self.process.stdout as said:
            self.number = said.readline().strip()

    @property
    def text(self) -> str:
        return self.said.read_text() if self.said.exists() else ""

    @property
    def record(self) -> dict[str, Any]:
        """The record that the run has left."""
        return harness.Ended(0, self.text, "", self.folder / "out").record

    def wait_for(self, words: str) -> None:
        """Return when the job has said ``words``."""
        patience.until(lambda: words in self.text, [self.process], output=self.folder)

    def end(self) -> int:
        """Return the exit code of the job."""
        return patience.ended(self.process, output=self.folder)


def test_slurm_judges_a_file_of_four_nodes_with_eight_devices_each(
    cluster: Cluster, tmp_path: Path
) -> None:
    words = ("--nodes=4", "--", "run", "--dp-shard=32")
    text = job_file(tmp_path, *words).read_text()
    judge = ["sbatch", "--test-only", "--partition=fake", "job.sh"]
    code, said = cluster.call(judge, tmp_path)
    assert code == 0, said
    assert "on nodes fake[1-4]" in said
    (tmp_path / "job.sh").write_text(text.replace("gpus-per-node=8", "gpus-per-node=9"))
    code, said = cluster.call(judge, tmp_path)
    assert code != 0
    assert "not available" in said


def test_slurm_takes_every_key_of_a_site_file_as_it_is_meant(
    cluster: Cluster, tmp_path: Path
) -> None:
    site = tmp_path / "site.toml"
    site.write_text(
        'account = "m1"\npartition = "fake"\ninterface = "lo"\nranks_per_node = 4\n'
        'directives = ["--mem=0", "--comment=\'a b\'", "--hold"]\n'
    )
    job_file(tmp_path, f"--site={site}", "--nodes=3", "--minutes=90", "--", "run", "--tp=4")
    code, number = cluster.call(["sbatch", "--parsable", "job.sh"], tmp_path)
    assert code == 0, number
    _, shown = cluster.call(["scontrol", "show", "job", number.strip()])
    cluster.call(["scancel", number.strip()])
    for words in (
        "Account=m1",
        "Partition=fake",
        "NumNodes=3",
        "TimeLimit=01:30:00",
        "Comment=a b",
    ):
        assert words in shown
    assert "TresPerNode=gres:gpu:4" in shown


def of_two_nodes(cluster: Cluster, folder: Path, *flags: str) -> Submitted:
    """Submit llmb's own job of two nodes with one rank each."""
    nodes = ("--nodes=2", "--ranks-per-node=1", "--minutes=5")
    return Submitted(cluster, job_file(folder, *nodes, "--", *RUN, *flags))


def test_the_ranks_of_two_nodes_run(cluster: Cluster, tmp_path: Path) -> None:
    job = of_two_nodes(cluster, tmp_path, harness.UNAUDITED)
    assert job.end() == 0, job.text
    assert [rank["rank"] for rank in job.record["topology"]["ranks"]] == [0, 1]


def test_srun_starts_ranks_without_torchrun(cluster: Cluster, tmp_path: Path) -> None:
    file = tmp_path / "job.sh"
    command = shlex.join(harness.llmb_command(*RUN, harness.UNAUDITED))
    file.write_text(
        "#!/bin/bash\n#SBATCH --nodes=2\n"
        f"export MASTER_ADDR={slurm_cluster.NODES[0]} MASTER_PORT={free_port()}\n"
        f"srun --ntasks-per-node=1 {command}\n"
    )
    job = Submitted(cluster, file)
    assert job.end() == 0, job.text
    assert [rank["rank"] for rank in job.record["topology"]["ranks"]] == [0, 1]


def test_an_early_warning_reaches_llmb_which_keeps_what_is_measured(
    cluster: Cluster, tmp_path: Path
) -> None:
    job = of_two_nodes(cluster, tmp_path, "--audit=full")
    job.wait_for("honest")
    cluster.call(["scancel", "--signal=USR1", job.number])
    assert job.end() != 0
    assert "interrupted by SIGUSR1" in job.text
    assert "User defined signal" not in job.text  # torchrun has ended by itself
    assert job.record["timing"]["timed_steps"] == 20
