"""The analytic step: its parts follow the layout, and published rows are near."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmb.errors import UsageError
from llmb.families import family_of
from llmb.projection import calibration
from llmb.projection.hardware_files import load
from llmb.projection.job import Job, Model
from llmb.projection.jobs import JobRequest, job_of
from llmb.projection.search import search
from llmb.projection.step_time import step_time
from llmb.workloads import WORKLOADS
from llmb.workloads.arithmetic import parameter_count
from llmb.workloads.memory import MEGATRON, Memory

MODEL = Model(32, 4096, 16384, 32, 1.0, False, 32000, 2048)
H100, CONSTANTS = load("h100"), calibration.constants()
ROWS = Path(__file__).resolve().parents[3] / "benchmarks" / "projection" / "rows.json"


def parts(job):
    return step_time(job, H100, CONSTANTS)


def test_parts_add_up_and_a_single_device_sends_nothing():
    found = parts(Job(MODEL, micro_batches=4))
    assert found.total == pytest.approx(sum(found.parts().values()))
    assert found.tensor_parallel == found.data_parallel == found.bubble == found.pipeline == 0
    assert found.products / found.total > 0.5


def test_the_bubble_is_that_of_the_schedule():
    job = Job(MODEL, pp=4, micro_batches=16)
    found, interleaved = parts(job), parts(replace(job, virtual_stages=2))
    busy = found.products + found.attention + found.elementwise
    assert found.bubble == pytest.approx(busy * 3 / 16)
    assert interleaved.bubble == pytest.approx(found.bubble / 2)


def test_recomputing_everything_is_another_forward_pass_a_third_of_the_work():
    job = Job(MODEL, recompute="full")
    found = parts(job)
    work = found.products + found.attention + found.elementwise
    assert found.recompute == pytest.approx(work / 3, rel=0.05)


def test_slices_send_four_sums_a_layer_and_six_where_recomputed():
    sliced = Job(MODEL, tp=8)
    again = replace(sliced, recompute="full")
    assert parts(again).tensor_parallel == pytest.approx(1.5 * parts(sliced).tensor_parallel)
    shown = parts(replace(sliced, overlapped_tp=True)).tensor_parallel
    assert shown == pytest.approx(parts(sliced).tensor_parallel / 2)
    assert parts(replace(sliced, tp=16)).tensor_parallel > 3 * parts(sliced).tensor_parallel


def test_what_was_measured_of_a_node_takes_the_place_of_what_is_assumed():
    sliced, staged = Job(MODEL, tp=8), Job(MODEL, pp=8, micro_batches=8)
    slow = H100.model_copy(update={"latency_s": 1.01e-3})
    more = step_time(sliced, slow, CONSTANTS).tensor_parallel - parts(sliced).tensor_parallel
    assert more == pytest.approx(32 * 4 * 1e-3)
    quick = H100.model_copy(update={"message_bytes_per_second": 2 * H100.link_bytes_per_second})
    assert step_time(staged, quick, CONSTANTS).pipeline == pytest.approx(parts(staged).pipeline / 2)
    beyond = replace(staged, dp=2)
    assert step_time(beyond, quick, CONSTANTS).pipeline == parts(beyond).pipeline
    assert parts(beyond).pipeline > parts(staged).pipeline, "stages of one node use its links"


@given(
    tp=st.sampled_from([1, 2, 4, 8]),
    pp=st.sampled_from([1, 2, 4, 8]),
    dp=st.sampled_from([1, 3, 64]),
    zero=st.integers(0, 3),
    micro=st.sampled_from([1, 2, 7]),
)
def test_more_work_never_takes_less_time_and_a_faster_device_never_more(tp, pp, dp, zero, micro):
    layout = {"dp": dp, "tp": tp, "pp": pp, "zero": zero}
    job = Job(MODEL, **layout, micro_batch=micro, micro_batches=8, stored=MEGATRON)
    found = parts(job)
    assert all(value >= 0 for value in found.parts().values())
    assert parts(replace(job, micro_batches=16)).total > found.total
    assert parts(replace(job, recompute="full")).total > found.total
    faster = H100.model_copy(update={"peak_flops": 2 * H100.peak_flops})
    assert step_time(job, faster, CONSTANTS).total <= found.total
    memory = job.memory
    assert replace(job, recompute="full").memory.activations < memory.activations
    assert replace(job, zero=min(3, zero + 1)).memory.total <= memory.total * 1.3


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"tp": 5}, "--tp 5 does not divide the 32 attention heads"),
        ({"pp": 3}, "does not divide the 32 layers"),
        ({"virtual_stages": 2}, "needs --pp 2 or more"),
        ({"dp": 0}, "dp is 0: it must be positive"),
        ({"micro_batch": -1}, "micro batch is -1"),
    ],
)
def test_a_layout_that_cannot_be_is_named(change, words):
    with pytest.raises(UsageError, match=words.replace("(", r"\(")):
        replace(Job(MODEL), **change).check()


@pytest.mark.parametrize("name", [n for n, w in WORKLOADS.items() if w.family != "bert"])
def test_matrices_are_all_but_a_thousandth_of_a_models_parameters(name):
    shape = WORKLOADS[name].shape
    model = Model.of(shape)
    tied = model.vocabulary * model.hidden if family_of(shape).tied else 0
    positions = getattr(shape, "max_position_embeddings", 0) * model.hidden
    expected = parameter_count(shape) - positions
    assert model.parameters - tied == pytest.approx(expected, rel=2e-3)


def test_the_originals_layout_of_the_1t_model_is_taken_from_the_workload():
    job = job_of(WORKLOADS["alcf-1t"], JobRequest(recompute="full", zero=1))
    assert (job.tp, job.pp, job.dp, job.micro_batches) == (12, 64, 1, 512)
    aurora = load("aurora")
    seconds = step_time(job, aurora, CONSTANTS).total
    assert 54 < seconds < 200, "longer than the document's formula, which leaves much out"
    assert replace(job, stored=MEGATRON).memory.fits(aurora.memory_bytes) == "yes"
    with pytest.raises(UsageError, match="does not divide 770 devices"):
        job_of(WORKLOADS["alcf-1t"], JobRequest(world_size=770, global_batch=8))
    with pytest.raises(UsageError, match="are not so many micro-batches"):
        job_of(WORKLOADS["alcf-1t"], JobRequest(world_size=1536, global_batch=7))


def test_a_search_finds_nothing_faster_than_its_first_and_leaves_out_what_does_not_fit():
    found = search(MODEL, 64, 512, H100, CONSTANTS)
    totals = [one.time.total for one in found.best]
    assert totals == sorted(totals)
    assert all(one.job.devices == 64 and one.job.sequences == 512 for one in found.best)
    assert all(one.memory.fits(H100.memory_bytes) != "no" for one in found.best)
    plain = Job(MODEL, dp=8, tp=8, micro_batches=64, sequence_parallel=True)
    assert totals[0] <= parts(plain).total
    small = H100.model_copy(update={"memory_bytes": 10**9})
    with pytest.raises(UsageError, match="fits into 1 GB"):
        search(MODEL, 8, 8, small, CONSTANTS)
    with pytest.raises(UsageError, match="no layout of 7 devices"):
        search(MODEL, 7, 8, H100, CONSTANTS)


@pytest.mark.parametrize("believed", [0.0, 0.3, 1.0])
def test_a_measured_run_moves_the_share_of_products_as_far_as_it_is_believed(believed):
    job = Job(MODEL, micro_batches=4)

    def rate(constants):
        return job.tokens / step_time(job, H100, constants).total

    for factor in (0.7, 1.0, 1.2):
        measured = factor * rate(CONSTANTS)
        found = calibration.calibrated(CONSTANTS, measured, rate, believed)
        between = sorted((rate(CONSTANTS), measured))
        assert between[0] * 0.999 <= rate(found) <= between[1] * 1.001
        if believed == 1.0:
            assert rate(found) == pytest.approx(measured)
        elif believed == 0.0:
            assert found == CONSTANTS
        elif factor != 1:
            assert (found.products > CONSTANTS.products) == (factor > 1)


def test_a_run_is_believed_wholly_only_of_a_device_that_no_published_row_is_of():
    receipt = calibration.receipt()
    assert 0 < receipt.believed < 1
    assert receipt.belief("h100") == receipt.believed
    assert receipt.belief("mine") == 1.0


@pytest.mark.skipif(not ROWS.exists(), reason="an sdist has no benchmarks")
def test_errors_that_a_table_shares_are_believed_and_those_of_single_rows_are_not():
    from benchmarks.projection.score import believed

    def tables(shared, alone):
        names = ("a", "b", "c", "d")
        return {
            name: [{"meas": 100 * (1 + shared * way) * (1 + alone * sign)} for sign in (-1, 1) * 3]
            for name, way in zip(names, (-1, 1, -1, 1), strict=True)
        }

    def rate(row, constants):
        return 100.0

    assert believed(tables(0.1, 0.0), rate) == 1
    assert believed(tables(0.0, 0.1), rate) == 0
    assert 0.2 < believed(tables(0.1, 0.1), rate) < 0.8


@pytest.mark.skipif(not ROWS.exists(), reason="an sdist has no benchmarks")
def test_what_is_said_of_the_constants_is_what_they_do_on_the_published_rows():
    from benchmarks.projection.score import job_of as of_row
    from benchmarks.projection.score import off

    tables = json.loads(ROWS.read_text())["tables"]
    receipt = calibration.receipt()
    assert receipt.rows == sum(map(len, tables.values()))
    assert set(receipt.tables) == set(tables)
    means = []
    for rows in tables.values():
        means.append(100 * sum(map(abs, off(rows, CONSTANTS))) / len(rows))
        for row in rows:
            share = of_row(row).memory.total / load(row["hw"].lower()).memory_bytes
            assert share < 1.1, f"{row['name']} ran"
    # What was left out of a fit is a little worse off than what was in it.
    assert 0.5 * receipt.expected_error_percent < sum(means) / len(means)
    assert sum(means) / len(means) < receipt.expected_error_percent


@pytest.mark.skipif(not ROWS.exists(), reason="an sdist has no benchmarks")
def test_rows_that_nothing_was_fitted_on_are_met_at_every_length():
    from benchmarks.projection.score import off

    tables = json.loads(ROWS.with_name("unseen.json").read_text())["tables"]
    for rows in tables.values():
        for near in ([r for r in rows if r["s"] <= 4096], [r for r in rows if r["s"] > 4096]):
            errors = [abs(error) for error in off(near, CONSTANTS)]
            assert not errors or sum(errors) / len(errors) < 0.1


def test_attention_is_of_the_kernels_that_a_device_has():
    long = Job(replace(MODEL, sequence=32768))
    slow, fast = (H100.model_copy(update={"attention_fraction": f}) for f in (0.2, 0.4))
    times = [step_time(long, device, CONSTANTS).parts() for device in (slow, fast)]
    assert times[0].pop("attention") == pytest.approx(2 * times[1].pop("attention"))
    assert times[0] == times[1]


def test_a_layout_that_may_just_fit_is_found_and_one_that_cannot_is_left_out():
    memory_bytes = 16e9
    device = H100.model_copy(update={"memory_bytes": memory_bytes})
    found = search(MODEL, 64, 512, device, CONSTANTS, keep=10**6)
    fits = {one.memory.fits(memory_bytes) for one in found.best}
    assert fits == {"yes", "tight"}
    assert found.left_out["needs more memory than a device has"] == found.tried - len(found.best)


def test_of_more_layouts_than_a_search_keeps_the_fastest_stay():
    (first, *_) = search(MODEL, 64, 512, H100, CONSTANTS, keep=10**6).best
    (kept,) = search(MODEL, 64, 512, H100, CONSTANTS, keep=1).best
    assert kept.time.total == first.time.total


def test_replicas_that_lie_on_several_nodes_talk_over_the_network():
    assert H100.devices_per_node == 8
    inside, beyond = Job(MODEL, dp=4, tp=2), Job(MODEL, dp=4, tp=4)
    slow = H100.model_copy(update={"network_bytes_per_second": 1e6})

    def more(job):
        return step_time(job, slow, CONSTANTS).data_parallel / parts(job).data_parallel

    assert more(inside) == 1
    assert more(beyond) > 100


@pytest.mark.parametrize(
    ("share", "word"), [(0.85, "yes"), (0.86, "tight"), (1.10, "tight"), (1.11, "no")]
)
def test_what_fills_the_memory_is_tight_and_what_is_a_tenth_more_does_not_fit(share, word):
    assert Memory(weights=share * 1e9).fits(1e9) == word
