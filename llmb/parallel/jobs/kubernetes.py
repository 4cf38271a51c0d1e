"""Job files for Kubernetes: a TrainJob of Kubeflow Trainer v2, or a JobSet."""

from __future__ import annotations

from collections.abc import Mapping

from llmb.parallel.jobs.job import PORT, LaunchJob
from llmb.parallel.jobs.yaml import yaml

_NAME = "llmb"
#: Name of container and replicated job, and label, by which Trainer finds the training step.
_NODE = "node"
_STEP = {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}
_INDEX = "metadata.annotations['batch.kubernetes.io/job-completion-index']"
_RUNS = "/runs"
_CLAIM = "llmb-runs"


def trainjob(job: LaunchJob) -> str:
    """Return a TrainingRuntime and a TrainJob: Trainer sets the variables that torchrun reads.

    A TrainJob cannot set backoffLimit and restartPolicy of the cluster's runtime
    ``torch-distributed``, so the file brings a runtime.
    """
    pod = _pod(job, {})
    group = "trainer.kubeflow.org"
    runtime = {
        "apiVersion": f"{group}/v1alpha1",
        "kind": "TrainingRuntime",
        "metadata": {"name": _NAME},
        "spec": {
            "mlPolicy": {"numNodes": job.nodes, "torch": {}},
            "template": {
                "spec": {
                    "replicatedJobs": [
                        {
                            "name": _NODE,
                            "template": {"metadata": {"labels": _STEP}, "spec": _once(job, pod)},
                        }
                    ]
                }
            },
        },
    }
    trainer: dict[str, object] = {
        "numNodes": job.nodes,
        "numProcPerNode": job.ranks_per_node,
        **_command(job),
    }
    trainer |= {"env": _environment(job)} if _environment(job) else {}
    trainer |= {"resourcesPerNode": {"limits": _limits(job)}} if _limits(job) else {}
    train = {
        "apiVersion": f"{group}/v1alpha1",
        "kind": "TrainJob",
        "metadata": {"name": _NAME},
        "spec": {
            "runtimeRef": {"apiGroup": group, "kind": "TrainingRuntime", "name": _NAME},
            "trainer": trainer,
        },
    }
    return f"""\
# kubectl apply -f FILE
# Needs Kubeflow Trainer v2.
{_claimed(job)}{yaml(runtime)}---
{yaml(train)}"""


def jobset(job: LaunchJob) -> str:
    """Return a JobSet of one pod per node; rank 0 has a host name of the headless service."""
    meeting = {
        "PET_NNODES": job.nodes,
        "PET_NPROC_PER_NODE": job.ranks_per_node,
        "PET_MASTER_ADDR": f"{_NAME}-{_NODE}-0-0.{_NAME}",
        "PET_MASTER_PORT": PORT,
    }
    environment: list[object] = [{"name": n, "value": str(v)} for n, v in meeting.items()]
    environment.append(
        {"name": "PET_NODE_RANK", "valueFrom": {"fieldRef": {"fieldPath": _INDEX}}},
    )
    container: dict[str, object] = {**_command(job), "env": [*environment, *_environment(job)]}
    container |= {"resources": {"limits": _limits(job)}} if _limits(job) else {}
    indexed = {"completionMode": "Indexed", "completions": job.nodes, "parallelism": job.nodes}
    written = {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": _NAME},
        "spec": {
            "network": {
                "enableDNSHostnames": True,
                "publishNotReadyAddresses": True,
                "subdomain": _NAME,
            },
            "replicatedJobs": [
                {
                    "name": _NODE,
                    "replicas": 1,
                    "template": {"spec": {**indexed, **_once(job, _pod(job, container))}},
                }
            ],
        },
    }
    return f"""\
# kubectl apply -f FILE
# Needs JobSet (jobset.sigs.k8s.io).
{_claimed(job)}{yaml(written)}"""


def _claimed(job: LaunchJob) -> str:
    shared = ", ReadWriteMany" if job.nodes > 1 else ""
    return f"# Run directories go to the persistent volume claim {_claim(job)}{shared}.\n"


def _claim(job: LaunchJob) -> str:
    return job.site.claim or _CLAIM


def _once(job: LaunchJob, pod: Mapping[str, object]) -> dict[str, object]:
    """Return the spec of a Job with a time limit and without retries."""
    return {
        "backoffLimit": 0,
        "activeDeadlineSeconds": job.minutes * 60,
        "template": {"spec": pod},
    }


def _pod(job: LaunchJob, container: Mapping[str, object]) -> dict[str, object]:
    """Return a pod with 1 GiB of /dev/shm per rank: container runtimes give 64 MiB in all."""
    shared = {"medium": "Memory", "sizeLimit": f"{job.ranks_per_node}Gi"}
    return {
        "restartPolicy": "Never",
        "containers": [
            {
                "name": _NODE,
                "image": job.site.image or "",
                **container,
                "workingDir": _RUNS,
                "volumeMounts": [
                    {"name": "shm", "mountPath": "/dev/shm"},
                    {"name": "runs", "mountPath": _RUNS},
                ],
            }
        ],
        "volumes": [
            {"name": "shm", "emptyDir": shared},
            {"name": "runs", "persistentVolumeClaim": {"claimName": _claim(job)}},
        ],
    }


def _command(job: LaunchJob) -> dict[str, object]:
    arguments = ["-m", "llmb", *map(_literal, job.arguments)]
    return {"command": ["torchrun", "--max-restarts=0"], "args": arguments}


def _environment(job: LaunchJob) -> list[object]:
    variables = job.site.variables.items()
    return [{"name": name, "value": _literal(value)} for name, value in variables]


def _limits(job: LaunchJob) -> dict[str, object]:
    devices = {job.site.resource: job.ranks_per_node} if job.site.resource else {}
    return {**job.site.limits, **devices}


def _literal(text: str) -> str:
    """Escape dollars: Kubernetes would replace ``$(NAME)`` by the value of a variable."""
    return text.replace("$", "$$")
