"""Files for Kubernetes are held to what Kubernetes, JobSet and Kubeflow Trainer publish.

Trainer's own models (``kubeflow-trainer-api``) know its objects and those of JobSet, and ignore
other keys: what a model gives back must be all that it was given. The schemas of Kubernetes
(``kubernetes-validate``) know jobs and pods, with their required fields, and refuse other keys.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from llmb.parallel.jobs.job import LaunchJob
from llmb.parallel.jobs.kinds import SCHEDULERS
from llmb.parallel.jobs.site import Site
from tests import needs

pytestmark = pytest.mark.full  # the schemas are 100 MB

HOSTILE = "a: b\"c'd {e} [f] #g | > & * ! % @ ` $(HOME) $$(HOME) ${HOME} \\n — ü"
SITE = Site(
    image="registry.example/llmb:0.2",
    resource="vendor.example/gpu",
    limits={"memory": "512Gi", "rdma/ib": "1"},
    interface="eth0",
    environment={"GREETING": HOSTILE, "EMPTY": "", "YES": "yes", "ONE": "1"},
    claim="results",
)
PLAIN = Site(image="llmb")


def job(site: Site, nodes: int = 2) -> LaunchJob:
    return LaunchJob(nodes, 4, ("run", "--workload", HOSTILE, "true"), minutes=90, site=site)


def documents(kind: str, written: LaunchJob) -> list[dict[str, Any]]:
    """Return what a reader of YAML makes of a file."""
    return list(needs.module("yaml").safe_load_all(SCHEDULERS[kind].write(written)))


def kept(model: type[Any], document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return what ``model`` has understood of ``document``."""
    understood = model.from_dict(document)
    assert understood is not None
    return understood.to_dict()


def pods_job(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the Job that JobSet makes of the one replicated job."""
    (replicated,) = document["spec"]["replicatedJobs"]
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": f"llmb-{replicated['name']}-0"},
        **replicated["template"],
    }


@pytest.mark.parametrize("nodes", [1, 3])
@pytest.mark.parametrize("site", [SITE, PLAIN], ids=["all", "least"])
def test_a_trainjob_and_its_runtime_are_what_trainer_knows(site: Site, nodes: int) -> None:
    models = needs.module("kubeflow_trainer_api.models")
    runtime, train = documents("trainjob", job(site, nodes))
    assert kept(models.TrainerV1alpha1TrainingRuntime, runtime) == runtime
    assert kept(models.TrainerV1alpha1TrainJob, train) == train
    assert train["spec"]["runtimeRef"]["name"] == runtime["metadata"]["name"]
    assert train["spec"]["trainer"]["numNodes"] == nodes


@pytest.mark.parametrize("nodes", [1, 3])
@pytest.mark.parametrize("site", [SITE, PLAIN], ids=["all", "least"])
def test_a_jobset_is_what_jobset_knows_and_its_job_what_kubernetes_takes(
    site: Site, nodes: int
) -> None:
    models = needs.module("kubeflow_trainer_api.models")
    kubernetes = needs.module("kubernetes_validate")
    (written,) = documents("jobset", job(site, nodes))
    assert kept(models.JobsetV1alpha2JobSet, written) == written
    kubernetes.validate(pods_job(written), kubernetes.latest_version(), strict=True)


def test_the_job_of_a_trainjob_is_what_kubernetes_takes() -> None:
    kubernetes = needs.module("kubernetes_validate")
    runtime, train = documents("trainjob", job(SITE))
    spec = pods_job(runtime["spec"]["template"])
    (container,) = spec["spec"]["template"]["spec"]["containers"]
    # What Trainer puts into the container: kubeflow/trainer, pkg/runtime/framework/plugins/jobset.
    trainer = train["spec"]["trainer"]
    container |= {name: trainer[name] for name in ("command", "args", "env")}
    container["resources"] = trainer["resourcesPerNode"]
    kubernetes.validate(spec, kubernetes.latest_version(), strict=True)
    container["execute"] = container.pop("command")
    with pytest.raises(kubernetes.ValidationError):
        kubernetes.validate(spec, kubernetes.latest_version(), strict=True)


def test_the_schemas_refuse_a_key_that_is_misspelt() -> None:
    models = needs.module("kubeflow_trainer_api.models")
    kubernetes = needs.module("kubernetes_validate")
    (written,) = documents("jobset", job(PLAIN))
    pod = written["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    pod["restartPolicies"] = "Never"
    with pytest.raises(kubernetes.ValidationError, match="restartPolicies"):
        kubernetes.validate(pods_job(written), kubernetes.latest_version(), strict=True)
    written["spec"]["networks"] = {}
    assert kept(models.JobsetV1alpha2JobSet, written) != written


def pod(kind: str, written: LaunchJob) -> dict[str, Any]:
    """Return the one pod of a file."""
    document = documents(kind, written)[0]
    spec = document["spec"].get("template", document)["spec"]
    return pods_job({"spec": spec})["spec"]["template"]["spec"]


@pytest.mark.parametrize("kind", ["trainjob", "jobset"])
def test_a_pod_has_shared_memory_and_a_volume_and_is_started_once(kind: str) -> None:
    needs.package("yaml")
    shown = pod(kind, job(SITE))
    assert shown["restartPolicy"] == "Never"
    volumes = {volume["name"]: volume for volume in shown["volumes"]}
    assert volumes["shm"]["emptyDir"] == {"medium": "Memory", "sizeLimit": "4Gi"}
    assert volumes["runs"]["persistentVolumeClaim"] == {"claimName": "results"}
    (container,) = shown["containers"]
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert mounts == {"shm": "/dev/shm", "runs": container["workingDir"]}
    text = SCHEDULERS[kind].write(job(SITE))
    for words in ("backoffLimit: 0\n", "activeDeadlineSeconds: 5400\n", "vendor.example/gpu: 4\n"):
        assert words in text


def test_no_limit_is_asked_for_where_the_site_names_none() -> None:
    for kind in ("trainjob", "jobset"):
        assert "limits" not in SCHEDULERS[kind].write(job(PLAIN))


def expanded(text: str) -> str:
    """Return what a container is given: kubelet reads $$ as $, and $(X) as the value of X."""
    assert "$(" not in text.replace("$$", "")
    return text.replace("$$", "$")


@pytest.mark.parametrize("kind", ["trainjob", "jobset"])
def test_hostile_texts_stay_texts(kind: str) -> None:
    *_, last = documents(kind, job(SITE))
    trainer = last["spec"].get("trainer") or pod(kind, job(SITE))["containers"][0]
    assert [*map(expanded, trainer["args"])] == ["-m", "llmb", "run", "--workload", HOSTILE, "true"]
    values = {each["name"]: each["value"] for each in trainer["env"] if "value" in each}
    assert expanded(values["GREETING"]) == HOSTILE
    assert [values[name] for name in ("EMPTY", "YES", "ONE")] == ["", "yes", "1"]
    assert values["NCCL_SOCKET_IFNAME"] == values["GLOO_SOCKET_IFNAME"] == "eth0"
