"""Job files that are shell scripts: Slurm, PBS, and torchrun by hand."""

from __future__ import annotations

import re
import shlex

from llmb.parallel.jobs.job import PORT, LaunchJob

#: Directives of a site that replace ``--gpus-per-node``.
_DEVICES = re.compile(r"--gres[ =]gpu|--gpus|--tres-per-|-G")


def slurm(job: LaunchJob) -> str:
    """Return a batch script: srun starts torchrun once per node, torchrun starts the ranks."""
    site = job.site
    asked = {"account": site.account, "partition": site.partition}
    asked |= {"qos": site.qos, "constraint": site.constraint}
    directives = [
        "--job-name=llmb",
        f"--nodes={job.nodes}",
        "--ntasks-per-node=1",
        "--exclusive",
        f"--time={job.limit}",
        f"--signal=USR1@{job.warning_s}",
        *(f"--{name}={value}" for name, value in asked.items() if value is not None),
        *site.directives,
    ]
    if job.on_devices and not any(_DEVICES.match(each) for each in site.directives):
        directives.insert(3, f"--gpus-per-node={job.ranks_per_node}")
    container = f"    {shlex.join(site.before_program)} \\\n" if site.container else ""
    return f"""\
{_head(job, "#SBATCH", directives)}
# Submit with sbatch, in an environment in which `llmb --version` answers.
{_prepared(job)}first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
# SLURM_NODEID is known on each node alone, so a shell on the node reads the variable.
# SIGUSR1 warns llmb of the time limit. torchrun ignores the signal: by default it would end.
srun --kill-on-bad-exit=1 --cpu-bind=none \\
{container}    bash -c 'trap "" USR1; exec torchrun --node-rank="$SLURM_NODEID" "$@"' torchrun \\
    --nnodes="$SLURM_NNODES" --nproc-per-node={job.ranks_per_node} --max-restarts=0 \\
    --master-addr="$first" --master-port={PORT} -m llmb {job.command}
"""


def pbs(job: LaunchJob) -> str:
    """Return a batch script: mpiexec starts every rank; llmb reads the rank from PALS or PMI."""
    site = job.site
    asked = {"-A": site.account, "-q": site.partition}
    directives = [
        "-N llmb",
        f"-l select={job.nodes}",
        "-l place=scatter",
        f"-l walltime={job.limit}",
        *(f"{name} {value}" for name, value in asked.items() if value is not None),
        *site.directives,
    ]
    before = "".join(f"{shlex.quote(word)} " for word in site.before_program)
    account = "" if site.account else " -A PROJECT"
    return f"""\
{_head(job, "#PBS", directives)}
# Untested: written after the manuals of PBS Professional and PALS, as Aurora has them.
# Submit with qsub{account}, in an environment in which `llmb --version` answers.
{_prepared(job)}cd "$PBS_O_WORKDIR"
MASTER_ADDR=$(head -n 1 "$PBS_NODEFILE")
MASTER_PORT={PORT}
export MASTER_ADDR MASTER_PORT
mpiexec -n {job.nodes * job.ranks_per_node} --ppn {job.ranks_per_node} {before}llmb {job.command}
"""


def torchrun(job: LaunchJob) -> str:
    """Return a script for machines without a scheduler; comments hold the line for each node."""
    before = "".join(f"{shlex.quote(word)} " for word in job.site.before_program)
    ranks = f"--nproc-per-node={job.ranks_per_node} --max-restarts=0"
    if job.nodes == 1:
        return f"""\
{_head(job, "", [])}
# One machine of {job.ranks_per_node} ranks. Paste: bash FILE
{_prepared(job)}exec {before}torchrun --standalone {ranks} -m llmb {job.command}
"""
    lines = "\n".join(f"#     node {node}:  bash FILE {node} HOST0" for node in range(job.nodes))
    return f"""\
{_head(job, "", [])}
# {job.nodes} machines of {job.ranks_per_node} ranks each. Copy this file to each, and paste there:
{lines}
# HOST0 is the name or address of node 0; the others reach it at port {PORT}.
{_prepared(job)}node=${{1:?the number of this node, 0 to {job.nodes - 1}}}
first=${{2:?the name or address of node 0}}
exec {before}torchrun --nnodes={job.nodes} --node-rank="$node" {ranks} \\
    --master-addr="$first" --master-port={PORT} -m llmb {job.command}
"""


def _head(job: LaunchJob, mark: str, directives: list[str]) -> str:
    """Return shebang and directives; ``module`` is a function of login shells."""
    shell = "#!/bin/bash -l" if job.site.modules else "#!/usr/bin/env bash"
    return "\n".join((shell, *(f"{mark} {each}" for each in directives)))


def _prepared(job: LaunchJob) -> str:
    """Return the lines that prepare the environment, and ``set -euo pipefail``.

    Scripts of modules and of Python environments read unset variables: ``set -u`` comes last.
    """
    site = job.site
    lines = [f"module load {shlex.join(site.modules)} || exit 1"] if site.modules else []
    if site.venv is not None:
        lines.append(f". {shlex.quote(site.venv + '/bin/activate')} || exit 1")
    lines += [f"export {name}={shlex.quote(text)}" for name, text in site.variables.items()]
    return "".join(f"{line}\n" for line in (*lines, "set -euo pipefail"))
