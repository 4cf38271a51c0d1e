"""Both paths give every workload's metrics; each edited one is found; older records have none."""

from __future__ import annotations

from itertools import pairwise

import pytest

from llmb import workloads
from llmb.config import Mode
from llmb.measure import statistics
from llmb.records.seeds import token_seed
from llmb.reference.lengths import draw_lengths
from llmb.submission.recompute import mismatches
from tests.builders import edited, make_record
from tests.unit.builders_workloads import of_workload, with_metrics


def about_metrics(record):
    return [m.field for m in mismatches(record) if m.field.startswith("result.metrics")]


def values(record):
    return {metric.name: metric.value for metric in record.result.metrics}


def seconds_a_step(record):
    timing = record.timing
    return (timing.stop_ns - timing.start_ns) / 1e9 / timing.timed_steps


@pytest.mark.parametrize("name", workloads.WORKLOADS)
def test_both_paths_give_the_same_metrics_of_every_workload(name):
    record = of_workload(name)
    assert values(record)
    assert about_metrics(record) == []
    for n, metric in enumerate(record.result.metrics):
        for field, wrong in (("value", metric.value * 1.001), ("unit", "x"), ("formula", "x")):
            forged = edited(
                record,
                lambda data, n=n, f=field, w=wrong: data["result"]["metrics"][n].update({f: w}),
            )
            assert about_metrics(forged) == [f"result.metrics.{n}.{field}"]


@pytest.mark.parametrize("mode", list(Mode))
def test_both_paths_agree_on_a_users_own_workload_in_every_mode(mode):
    own = {"family": "gpt2", "hidden_size": 64, "num_attention_heads": 2, "num_hidden_layers": 1}
    record = of_workload("nemo-like", mode, definition=own, batch_size=2)
    assert "tflops_per_device" in values(record)
    assert "node_hours_per_100k_steps" not in values(record), "no document is its own"
    assert about_metrics(record) == []


def test_the_figure_of_merit_is_the_documents_formula():
    record = of_workload("alcf-1t", batch_size=512)
    s, d, layers, seconds = 2048, 24576, 128, seconds_a_step(record)
    fom = (6 * s * d**2 + s**2 * d) * 512 * layers / seconds
    found = values(record)
    assert found["fom"] == pytest.approx(fom)
    assert found["mean_step_time_s"] == pytest.approx(seconds)
    assert found["tflops_per_device"] == pytest.approx(12 * fom / 1e12)
    # The script's third matrix and head are in one reading only.
    assert found["tflops_per_device_gemm_full"] == pytest.approx(15.95 * fom / 1e12, rel=1e-3)


def test_berts_figures_follow_from_one_measured_time():
    record = of_workload("nemo-bert-base", batch_size=128)
    found, seconds = values(record), seconds_a_step(record)
    assert found["iterations_per_second"] == pytest.approx(1 / seconds)
    assert found["samples_per_second"] == pytest.approx(128 / seconds)
    # One device of four is a node of its own: 100,000 x 4096 / 128 iterations.
    assert found["node_hours_per_100k_steps"] == pytest.approx(3_200_000 * seconds / 3600)


def test_mfu_by_the_documents_own_count_needs_a_peak():
    record = of_workload("gpt2-1.5b")
    found = values(record)
    assert found["tflops_per_device"] == pytest.approx(
        8 * 1024 / seconds_a_step(record) * 10_289_836_800 / 1e12
    )
    assert found["mfu_percent"] == pytest.approx(found["tflops_per_device"] / 400 * 100)
    without = with_metrics(edited(record, lambda data: data["result"].update(mfu=None)))
    assert "mfu_percent" not in values(without)
    assert about_metrics(without) == []


def test_litgpts_time_is_that_of_forty_five_steps():
    record = of_workload("litgpt-train", batch_size=2)
    assert values(record)["time_45_steps_s"] == pytest.approx(45 * seconds_a_step(record))


def test_a_forward_call_lasts_from_fence_to_fence():
    record = of_workload("litgpt-forward", batch_size=10)
    calls = sorted(b - a for a, b in pairwise(record.timing.fence_ns))
    assert values(record)["best_s"] == pytest.approx(calls[0] / 1e9)
    assert values(record)["median_s"] == pytest.approx((calls[24] + calls[25]) / 2e9)


def test_a_generation_is_counted_with_and_without_its_prefill():
    prefill = tuple(20_000_000 + step for step in range(52))
    record = of_workload("litgpt-generation", batch_size=1, prefill_ns=prefill)
    timing, found = record.timing, values(record)
    lasted = [b - a for a, b in pairwise(timing.fence_ns)]
    assert found["generated_tokens_per_second"] == pytest.approx(200e9 / min(lasted))
    assert found["generated_tokens_per_second_overall"] == pytest.approx(50 * 200e9 / sum(lasted))
    decoding = [ns - prefill[2 + n] for n, ns in enumerate(lasted)]
    without = found["generated_tokens_per_second_without_prefill"]
    assert without == pytest.approx(199e9 / min(decoding)), "the prefill brings the first token"
    assert found["prefill_s"] == pytest.approx(0.0200000265, abs=1e-12)
    assert about_metrics(record) == []


def test_without_a_known_prefill_nothing_is_said_of_it():
    assert values(of_workload("litgpt-generation", batch_size=1)).keys() == {
        "tflops_per_device",
        "generated_tokens_per_second",
        "generated_tokens_per_second_overall",
    }


def test_steps_of_several_lengths_have_a_time_and_no_tflops():
    tokens = tuple(2 * (10 + 7 * step) for step in range(52))
    record = of_workload("litgpt-train", batch_size=2, step_tokens=tokens)
    assert values(record).keys() == {"time_45_steps_s"}
    assert about_metrics(record) == []


@pytest.mark.parametrize("version", ["0.1.0", "0.0.9", "0.1.0.dev3"])
def test_a_record_of_before_the_metrics_has_none_and_is_held_to_none(version):
    record = edited(make_record(1), lambda data: data["result"].update(metrics=[]))
    made = {"llmb_version": version, "rules_version": "2"}
    assert mismatches(edited(record, lambda data: data.update(made))) == ()
    newer = edited(record, lambda data: data.update(llmb_version=version))
    assert [m.field for m in mismatches(newer)] == ["result.metrics"]


@pytest.mark.parametrize("version", ["0.1.1", "0.2.0", "1", "none"])
def test_a_newer_record_without_metrics_is_found(version):
    record = edited(make_record(1), lambda data: data["result"].update(metrics=[]))
    newer = edited(record, lambda data: data.update(llmb_version=version))
    assert [m.field for m in mismatches(newer)] == ["result.metrics"]


def test_a_metric_left_out_or_said_twice_is_found():
    record = of_workload("alcf-7b")
    for metrics in (record.result.metrics[:-1], record.result.metrics[:1] * 4):
        said = [metric.model_dump() for metric in metrics]
        forged = edited(record, lambda data, said=said: data["result"].update(metrics=said))
        assert about_metrics(forged) == ["result.metrics"]


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"step_tokens": [1] * 51}, "step_tokens"),
        ({"step_tokens": [0] * 52}, "step_tokens"),
        ({"step_tokens": [2049] * 52}, "step_tokens"),
        ({"prefill_ns": [1] * 52}, "prefill_ns"),
    ],
)
def test_steps_that_cannot_be_are_found_and_break_nothing(change, field):
    record = make_record(1)  # 2048 tokens a step, and trained

    def break_(data):
        data["timing"] |= change
        data["timing"]["repeats"][0] |= change

    found = [m.field for m in mismatches(edited(record, break_))]
    assert found == [f"timing.repeats.0.{field}"]


@pytest.mark.parametrize(
    "change",
    [
        {"hidden_size": 10**19},
        {"sequence_length": 0},
        {"num_attention_heads": None},
        {"num_hidden_layers": 1.5},
    ],
)
@pytest.mark.parametrize("name", ["alcf-7b", "gpt2-1.5b"])
def test_sizes_that_cannot_be_break_nothing(name, change):
    record = of_workload(name)
    assert mismatches(edited(record, lambda data: data["workload"]["shapes"].update(change)))


def test_other_stamps_than_the_repeats_own_are_found_and_break_nothing():
    record = of_workload("litgpt-forward")
    forged = edited(record, lambda data: data["timing"].update(fence_steps=[1], fence_ns=[]))
    assert "timing.fence_steps" in [m.field for m in mismatches(forged)]


def tokens_of(record):
    config, steps = record.config, len(record.timing.step_ns)
    seeds = (token_seed(config.seed, 0, step) for step in range(steps))
    longest = record.workload.shapes["sequence_length"]
    return [sum(draw_lengths(seed, config.batch_size, longest)) for seed in seeds]


def of_steps(data, tokens):
    data["config"]["dynamic"] = True
    data["class"], data["waivers"] = "debug", ["--dynamic"]
    data["plugin"]["strict"] = False
    data["timing"]["step_tokens"] = tokens
    data["timing"]["repeats"][0]["step_tokens"] = tokens


def test_tokens_of_steps_that_do_not_follow_from_their_seeds_are_found():
    record = make_record(1)
    tokens = tokens_of(record)
    tokens[10] += 1
    found = mismatches(edited(record, lambda data: of_steps(data, tokens)))
    assert "timing.repeats.0.step_tokens" in {mismatch.field for mismatch in found}


def test_both_paths_agree_on_every_number_of_steps_of_several_lengths():
    record = make_record(1)
    tokens = tokens_of(record)
    repeat = record.timing.repeats[0].model_copy(update={"step_tokens": tuple(tokens)})
    rate = sum(tokens[2:]) / ((repeat.stop_ns - repeat.start_ns) / 1e9)
    assert rate == statistics.tokens_per_second(repeat, 2048)

    def change(data):
        of_steps(data, tokens)
        result = data["result"]
        result["tokens_per_second"] = result["tokens_per_second_per_device"] = rate
        result["ci95"] = list(statistics.confidence_interval([repeat], 2048))
        # Sequences differ in work, too: no share of what the device can do.
        result["mfu"] = result["fraction_of_ceiling"] = None
        result["energy"]["tokens_per_joule"] = sum(tokens[2:]) / result["energy"]["joules"]
        result["metrics"] = []

    assert mismatches(edited(record, change)) == ()
