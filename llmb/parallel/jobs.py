"""Job files that start the ranks of one run: llmb writes them, a scheduler runs them."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass

_PORT = 29500


@dataclass(frozen=True)
class LaunchJob:
    """What a scheduler is asked for."""

    nodes: int
    ranks_per_node: int
    #: What follows ``llmb``, such as ``run --dp-shard 8``.
    arguments: tuple[str, ...]
    minutes: int = 60
    #: Of a container, where the scheduler runs one.
    image: str = "registry.example/llmb:latest"
    #: What a cluster calls the devices of a node, None where ranks run on processors.
    resource: str | None = None

    @property
    def command(self) -> str:
        """The arguments of llmb as a shell takes them."""
        return shlex.join(self.arguments)

    @property
    def limit(self) -> str:
        """The time limit, hours:minutes:seconds."""
        return f"{self.minutes // 60:02}:{self.minutes % 60:02}:00"


def slurm(job: LaunchJob) -> str:
    """Return a batch script: torchrun once a node, which starts that node's ranks."""
    return f"""\
#!/usr/bin/env bash
#SBATCH --job-name=llmb
#SBATCH --nodes={job.nodes}
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node={job.ranks_per_node}
#SBATCH --exclusive
#SBATCH --time={job.limit}
# Submit with sbatch, in an environment in which `llmb --version` answers.
# Ranks on processors alone: delete the line with --gpus-per-node.
set -euo pipefail
first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
# Each node's number is known on that node alone; ranks are then where Slurm has put them.
srun bash -c 'exec torchrun --node-rank="$SLURM_NODEID" "$@"' torchrun \\
    --nnodes="$SLURM_NNODES" --nproc-per-node={job.ranks_per_node} --max-restarts=0 \\
    --master-addr="$first" --master-port={_PORT} -m llmb {job.command}
"""


def pbs(job: LaunchJob) -> str:
    """Return a batch script: mpiexec starts every rank; llmb reads its place from PALS or PMI."""
    return f"""\
#!/usr/bin/env bash
#PBS -N llmb
#PBS -l select={job.nodes}
#PBS -l place=scatter
#PBS -l walltime={job.limit}
# Submit with qsub -A PROJECT, in an environment in which `llmb --version` answers.
set -euo pipefail
cd "$PBS_O_WORKDIR"
MASTER_ADDR=$(head -n 1 "$PBS_NODEFILE")
MASTER_PORT={_PORT}
export MASTER_ADDR MASTER_PORT
mpiexec -n {job.nodes * job.ranks_per_node} --ppn {job.ranks_per_node} llmb {job.command}
"""


def kubernetes(job: LaunchJob) -> str:
    """Return a PyTorchJob (Kubeflow's training operator): torchrun once a pod."""
    arguments = ["-m", "llmb", *job.arguments]
    limits = ""
    if job.resource is not None:
        limits = f"""\
              resources:
                limits:
                  {job.resource}: {job.ranks_per_node}
"""

    def role(name: str, count: int) -> str:
        return f"""\
    {name}:
      replicas: {count}
      restartPolicy: Never
      template:
        spec:
          containers:
            - name: pytorch
              image: {json.dumps(job.image)}
              command: ["torchrun", "--max-restarts=0"]
              args: {json.dumps(arguments)}
{limits}              volumeMounts:
                - {{name: runs, mountPath: /runs}}
              workingDir: /runs
          volumes:
            - name: runs
              persistentVolumeClaim: {{claimName: llmb-runs}}
"""

    workers = role("Worker", job.nodes - 1) if job.nodes > 1 else ""
    return f"""\
# kubectl apply -f FILE
# Needs Kubeflow's training operator, and a volume claim llmb-runs for what runs leave.
apiVersion: kubeflow.org/v1
kind: PyTorchJob
metadata:
  name: llmb
spec:
  nprocPerNode: "{job.ranks_per_node}"
  runPolicy:
    backoffLimit: 0
    activeDeadlineSeconds: {job.minutes * 60}
  pytorchReplicaSpecs:
{role("Master", 1)}{workers}"""


SCHEDULERS: dict[str, Callable[[LaunchJob], str]] = {"slurm": slurm, "pbs": pbs, "k8s": kubernetes}


def with_output(arguments: Sequence[str]) -> tuple[str, ...]:
    """Return ``arguments`` of llmb, ``run`` where they begin with an option."""
    return ("run", *arguments) if not arguments or arguments[0].startswith("-") else (*arguments,)
