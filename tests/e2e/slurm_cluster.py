"""A real Slurm on this machine: two nodes that run jobs, and 64 that only exist on paper.

Debian's ``slurm-wlm`` and ``munge``, as root. All files, sockets and ports are the cluster's own.
"""

from __future__ import annotations

import os
import secrets
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from llmb.parallel.place import free_port
from tests import needs

#: Nodes are called as they are reached: llmb's job file meets at the name of the first.
NODES = ("127.0.0.1", "127.0.0.2")
_WAIT_S = 60.0
_CONFIG = """\
ClusterName=test
SlurmctldHost={host}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
SlurmctldPort={ports[0]}
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
StateSaveLocation={folder}
SlurmdSpoolDir={folder}/spool.%n
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
ResumeProgram=/bin/true
SuspendProgram=/bin/true
MpiDefault=none
GresTypes=gpu
NodeName={nodes[0]} NodeHostname={host} Port={ports[1]} CPUs=2
NodeName={nodes[1]} NodeHostname={host} Port={ports[2]} CPUs=2
NodeName=fake[1-64] CPUs=64 Gres=gpu:8 State=CLOUD
PartitionName=real Nodes={nodes[0]},{nodes[1]} Default=YES
PartitionName=fake Nodes=fake[1-64]
"""


@dataclass(frozen=True)
class Cluster:
    """A Slurm that answers."""

    environment: Mapping[str, str]

    def call(self, command: Sequence[str], cwd: Path | None = None) -> tuple[int, str]:
        """Return the exit code of a command of Slurm, and what it said."""
        done = subprocess.run(
            command,
            env=self.environment,
            cwd=cwd,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        return done.returncode, done.stdout

    @property
    def idle(self) -> int:
        """Nodes that wait for a job."""
        return self.call(["sinfo", "-h", "-p", "real", "-t", "idle", "-N"])[1].count("idle")


@contextmanager
def running(folder: Path) -> Iterator[Cluster]:
    """Start a Slurm whose files are in ``folder``, and stop it."""
    for name in ("slurmctld", "munged"):
        needs.program(name)
    if os.geteuid() != 0:
        pytest.skip("root is missing: slurmd starts jobs as root alone")
    host = socket.gethostname().partition(".")[0]
    ports = [free_port() for _ in range(3)]
    values = {"host": host, "folder": folder, "ports": ports, "nodes": NODES}
    (folder / "slurm.conf").write_text(_CONFIG.format(**values))
    (folder / "cgroup.conf").write_text("CgroupAutomount=no\n")
    key = folder / "munge.key"
    key.write_bytes(secrets.token_bytes(128))
    key.chmod(0o600)
    parts = {"socket": "socket", "pid-file": "pid", "seed-file": "seed", "log-file": "log"}
    munge = [f"--{option}={folder}/munge.{name}" for option, name in parts.items()]
    environment = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf")}
    cluster = Cluster(environment)
    with ExitStack() as stack, (folder / "said").open("wb") as said:

        def start(*command: str) -> None:
            process = subprocess.Popen(command, env=environment, stdout=said, stderr=said)
            stack.callback(process.wait)
            stack.callback(process.terminate)

        start("munged", "--foreground", "--force", f"--key-file={key}", *munge)
        _until(folder, (folder / "munge.socket").exists)
        start("slurmctld", "-D")
        for node in NODES:
            (folder / f"spool.{node}").mkdir()
            start("slurmd", "-D", "-N", node)
        _until(folder, lambda: cluster.idle == len(NODES))
        yield cluster


def _until(folder: Path, condition: object) -> None:
    assert callable(condition)
    end = time.monotonic() + _WAIT_S
    while not condition():
        assert time.monotonic() < end, (folder / "said").read_text()
        time.sleep(0.2)
