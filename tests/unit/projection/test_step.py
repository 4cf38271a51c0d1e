"""What follows from a step's time: nanotron's rows to the digit, the 1T document's vectors."""

from __future__ import annotations

import pytest

from llmb import workloads
from llmb.config import Mode
from llmb.errors import BundleRefusedError, UsageError
from llmb.measure.step_figures import StepFigures
from llmb.projection.step import figures, given_step, measured_step
from llmb.workloads import WORKLOADS, published
from tests.builders import edited
from tests.unit.builders_workloads import of_workload

ALCF = WORKLOADS["alcf-1t"]


def values(workload, step, peak=None):
    return {metric.name: metric.value for metric in figures(workload, step, peak)}


def test_nanotrons_five_rows_follow_from_their_tokens_to_the_printed_digit() -> None:
    nanotron = WORKLOADS["nanotron-llama2-7b"]
    ((_, table),) = published.tables_of(nanotron.name)
    for row in table.rows:
        empty = given_step(nanotron, 1.0, None, row.settings["world_size"])
        seconds = empty.tokens / row.values["tokens_per_second"]
        step = given_step(nanotron, seconds, None, row.settings["world_size"])
        found = values(nanotron, step)
        assert round(found["gemm_full, per device"]) == row.values["tflops_per_device"]
        each = found["tokens_per_second_per_device"]
        assert each == pytest.approx(row.values["tokens_per_second_per_device"], rel=3e-3)


def test_nanotrons_batch_on_32_nodes_is_the_documents_1024_sequences() -> None:
    assert WORKLOADS["nanotron-llama2-7b"].global_batch_size(4 * 32) == 1024


def test_the_numerator_of_the_figure_of_merit_is_the_1t_documents_vector() -> None:
    step = given_step(ALCF, 1.0, None, None)
    assert (step.sequences, step.world_size) == (512, 768)
    assert values(ALCF, step)["fom"] == pytest.approx(512 * 963_172_185_931_776)


def test_true_flops_are_twelve_times_the_figure_of_merit_and_mfu_by_it_counts_them() -> None:
    found = values(ALCF, given_step(ALCF, 54.9, None, None), 500e12)
    assert found["12 x FOM, per device"] == pytest.approx(12 * found["fom"] / 768 / 1e12)
    assert found["12 x FOM, per device"] == pytest.approx(2 * found["alcf_mac, per device"])
    assert found["MFU by alcf_fom"] == pytest.approx(found["12 x FOM, per device"] / 5)
    assert found["MFU by gemm_full"] == pytest.approx(found["gemm_full, per device"] / 5)


def test_nemos_rates_and_node_hours_follow_from_one_time() -> None:
    bert = WORKLOADS["nemo-bert-base"]
    found = values(bert, given_step(bert, 1 / 1.18, None, None))
    assert found["samples_per_second"] == pytest.approx(1208.32)
    assert found["node_hours_per_100k_steps"] == pytest.approx(188.3, abs=0.05)
    large = WORKLOADS["nemo-bert-large"]
    found = values(large, given_step(large, 1 / 0.0518, None, None))
    assert found["node_hours_per_100k_steps"] == pytest.approx(536.25, abs=0.05)


def test_a_step_needs_devices_a_batch_and_training() -> None:
    with pytest.raises(UsageError, match="--world-size"):
        given_step(WORKLOADS["alcf-1t-readme"], 1.0, None, None)
    with pytest.raises(UsageError, match=r"replica is 768.*--global-batch"):
        given_step(ALCF, 1.0, None, 8)
    assert given_step(ALCF, 1.0, 16, 8) == StepFigures(1.0, 16, 16 * 2048, 8)
    with pytest.raises(UsageError, match="not trained"):
        given_step(WORKLOADS["litgpt-forward"], 1.0, 1, 1)


def test_a_measured_step_is_the_mean_one_of_the_window() -> None:
    record = of_workload("gpt2-125m", batch_size=4)
    workload, step = measured_step(record)
    assert workload == workloads.of(record.config)
    timing = record.timing
    assert step.seconds == pytest.approx((timing.stop_ns - timing.start_ns) / 50e9)
    assert (step.sequences, step.tokens, step.world_size) == (4, 4096, 1)


def test_a_record_of_another_mode_or_without_a_window_makes_no_step() -> None:
    with pytest.raises(UsageError, match="mode forward"):
        measured_step(of_workload("litgpt-forward"))
    record = of_workload("gpt2-125m", Mode.TRAIN)
    empty = edited(record, lambda data: data["timing"].update(stop_ns=0))
    with pytest.raises(BundleRefusedError, match="no length"):
        measured_step(empty)
