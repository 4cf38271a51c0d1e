"""The job of a projection is the one that its record was made by."""

from __future__ import annotations

import pytest

from llmb import workloads
from llmb.config import Mode
from llmb.projection.job import Job
from llmb.projection.jobs import JobRequest, job_of, measured_job
from tests.builders import edited
from tests.unit.builders_workloads import of_workload

WORKLOAD = workloads.find("llama-2-7b-proxy", {})


def job(**config: object) -> Job:
    record = of_workload(WORKLOAD.name, Mode.TRAIN, batch_size=8)
    return measured_job(WORKLOAD, edited(record, lambda data: data["config"].update(config)))


@pytest.mark.parametrize(("parts", "micro_batch"), [(1, 8), (4, 2)])
def test_a_device_takes_a_part_of_its_batch_at_once(parts: int, micro_batch: int) -> None:
    found = job(accumulate=parts)
    assert (found.micro_batch, found.micro_batches) == (micro_batch, parts)


@pytest.mark.parametrize(
    ("sac_freq", "recompute"), [(None, "none"), ("op", "none"), ("1", "full"), ("1/2", "full")]
)
def test_layers_that_are_recomputed_count_as_all_recomputed(
    sac_freq: str | None, recompute: str
) -> None:
    assert job(sac_freq=sac_freq).recompute == recompute


@pytest.mark.parametrize(("reshards", "zero"), [(True, 3), (False, 2)])
def test_shards_that_are_not_given_back_after_the_forward_pass_are_stage_2(
    reshards: bool, zero: int
) -> None:
    def spread(data):
        mesh = {"dp_shard": 2, "reshard_after_forward": reshards}
        data["topology"]["parallelism"] = data["config"]["parallelism"] = mesh

    record = of_workload(WORKLOAD.name, Mode.TRAIN, batch_size=8)
    assert measured_job(WORKLOAD, edited(record, spread)).zero == zero


@pytest.mark.parametrize(
    ("asked", "tp", "pp", "dp"),
    [
        (JobRequest(world_size=8, global_batch=8, micro_batch=1), 1, 1, 8),
        (JobRequest(world_size=8, global_batch=8, micro_batch=1, tp=2), 2, 1, 4),
        (JobRequest(world_size=8, global_batch=8, micro_batch=1, tp=2, pp=2), 2, 2, 2),
    ],
)
def test_what_is_asked_for_comes_before_the_originals_layout(asked, tp, pp, dp) -> None:
    found = job_of(workloads.find("llama-2-7b", {}), asked)
    assert (found.tp, found.pp, found.dp, found.devices) == (tp, pp, dp, 8)
    assert (found.micro_batch, found.micro_batches) == (1, 8 // dp)


@pytest.mark.parametrize(
    "changes",
    [
        {"micro_batch": 2},
        {"virtual_stages": 2, "pp": 2},
        {"zero": 1},
        {"recompute": "full"},
        {"sequence_parallel": True, "tp": 2},
        {"overlapped_tp": True, "tp": 2},
        {"fused_elementwise": False},
    ],
    ids=str,
)
def test_every_wish_is_the_jobs(changes) -> None:
    asked = JobRequest(world_size=4, global_batch=16, **{"micro_batch": 1, **changes})
    found = job_of(workloads.find("llama-2-7b", {}), asked)
    assert {name: getattr(found, name) for name in changes} == changes
