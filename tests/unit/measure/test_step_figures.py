"""Figures of the documents that count devices or nodes."""

from __future__ import annotations

import pytest

from llmb import workloads
from llmb.config import Parallelism
from llmb.measure.metrics import step_of
from llmb.measure.step_figures import StepFigures, node_hours_per_100k_steps, tflops_per_device
from tests.unit.builders_runtime import run_config, timing


def step(devices: int) -> StepFigures:
    return StepFigures(seconds=2.0, sequences=8, tokens=8 * 2048, world_size=devices)


def test_the_rate_of_one_device_is_that_of_all_over_their_number() -> None:
    workload = workloads.find("nanotron-llama2-7b", {})
    one, eight = (tflops_per_device(workload, step(devices)).value for devices in (1, 8))
    assert one == pytest.approx(8 * eight)


@pytest.mark.parametrize(("devices", "nodes"), [(1, 1), (4, 1), (6, 2), (8, 2), (9, 3)])
def test_node_hours_count_every_node_that_is_begun(devices: int, nodes: int) -> None:
    # 100,000 steps of 4096 sequences at 8 sequences in 2 s.
    expected = nodes * 100_000 * (4096 / 8) * 2.0 / 3600
    assert node_hours_per_100k_steps(step(devices)).value == pytest.approx(expected)


def test_a_step_has_the_sequences_of_every_replica_and_shard_and_none_of_slices() -> None:
    mesh = Parallelism(dp_replicate=2, dp_shard=3, tp=2)
    found = step_of(run_config(batch_size=4, parallelism=mesh), timing(), 100)
    assert (found.sequences, found.world_size, found.seconds) == (24, 12, 0.1)
