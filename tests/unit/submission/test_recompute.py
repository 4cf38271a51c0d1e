"""The second path agrees with the first on honest records, and finds any edited derived number."""

from __future__ import annotations

import random
import subprocess
import sys
from dataclasses import asdict
from itertools import islice, pairwise

import pytest

from llmb import workloads
from llmb.measure import statistics as first
from llmb.submission import recompute_time
from llmb.submission.comparison import equal
from llmb.submission.recompute import mismatches
from llmb.workloads.arithmetic import flops_per_token, parameter_count
from tests.builders import edited, make_record

DERIVED = [
    "workload.name",
    "workload.mode",
    "workload.parameters",
    "workload.flops_per_token",
    "workload.tokens_per_step",
    *(f"workload.shapes.{name}" for name in ("vocab_size", "rope_theta", "rms_norm_eps")),
    "plugin.name",
    "plugin.strict",
    "plugin.options.level",
    "precision.declared",
    "topology.world_size",
    "topology.nodes",
    "topology.devices_per_node",
    "topology.parallelism.tp",
    "topology.ranks.0.rank",
    "topology.ranks.0.fence_ns.3",
    "topology.ranks.0.peak_memory_bytes",
    "timing.headline_repeat",
    "timing.start_ns",
    "timing.stop_ns",
    "timing.warmup_steps",
    "timing.timed_steps",
    "timing.fence_ns.2",
    "timing.fence_worker_ns.2",
    "timing.fence_steps.2",
    "timing.step_ns.20",
    "timing.starved_steps",
    "timing.loss_first",
    "timing.loss_last",
    "timing.peak_memory_bytes",
    "timing.energy_start_j",
    "timing.energy_stop_j",
    "timing.cpu_s",
    *(f"timing.repeats.{n}.{name}" for n in range(3) for name in ("start_ns", "stop_ns")),
    "timing.repeats.1.fence_ns.0",
    "timing.repeats.1.fence_ns.2",
    "timing.repeats.0.fence_ns.5",
    "timing.repeats.0.timed_steps",
    "timing.repeats.2.warmup_steps",
    "config.batch_size",
    "config.repeats",
    "config.timed_steps",
    "result.tokens_per_second",
    "result.tokens_per_second_per_device",
    "result.ci95.0",
    "result.ci95.1",
    *(f"result.step_time_s.{name}" for name in ("median", "p5", "p95", "cv")),
    "result.mfu.value",
    "result.mfu.peak_flops",
    "result.fraction_of_ceiling",
    "result.peak_memory_bytes",
    "result.energy.joules",
    "result.energy.tokens_per_joule",
    "result.loss_first",
    "result.loss_last",
    *(f"result.metrics.0.{name}" for name in ("name", "value", "unit", "formula")),
    "ceilings.before.flops_per_second",
    "ceilings.after.flops_per_second",
    "ceilings.before.gemms.1.best_s",
    "ceilings.after.gemms.2.count",
    "ceilings.before.best_product_flops_per_second",
    "ceilings.before.squares.0.size",
    "ceilings.after.squares.0.best_s",
    "batch_size_search.best",
]


def one_digit(value):
    """Return ``value`` with one digit changed, where it weighs least but still counts."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + 1
    if isinstance(value, float):
        return value * (1 + 1e-6)
    return value + "x"


def change(data, path, by=one_digit):
    *parents, last = [int(part) if part.isdigit() else part for part in path.split(".")]
    for part in parents:
        data = data[part]
    data[last] = by(data[last])


@pytest.fixture(scope="module")
def record():
    return make_record()


@pytest.mark.parametrize("step_clock", ["host", "device", "enqueue"])
@pytest.mark.parametrize("repeats", [1, 2, 3, 4])
def test_both_paths_agree_on_an_honest_record(step_clock, repeats):
    assert mismatches(make_record(repeats=repeats, step_clock=step_clock)) == ()


@pytest.mark.parametrize("timed_steps", [1, 9, 10, 11, 25])
def test_both_paths_agree_on_short_windows(timed_steps):
    record = make_record(1, timed_steps=timed_steps, waivers=("--timed-steps",))
    assert mismatches(record) == ()
    assert (record.result.ci95 is None) == (timed_steps <= 10)


@pytest.mark.parametrize("path", DERIVED)
def test_one_changed_digit_is_found(record, path):
    assert mismatches(edited(record, lambda data: change(data, path)))


@pytest.mark.parametrize(
    "path",
    ["ci95", "step_time_s", "mfu", "fraction_of_ceiling", "peak_memory_bytes", "energy"],
)
def test_a_number_left_out_is_found_where_its_raw_values_are_there(record, path):
    forged = edited(record, lambda data: data["result"].update({path: None}))
    expected = path != "mfu"  # a datasheet peak need not be known
    assert bool(mismatches(forged)) == expected


@pytest.mark.parametrize(
    ("choice", "value"), [("mixed_precision", True), ("prompt_tokens", [1, 2])]
)
def test_a_choice_that_does_not_go_with_the_other_choices_is_found(record, choice, value):
    forged = edited(record, lambda data: data["config"].update({choice: value}))
    assert f"config.{choice}" in [m.field for m in mismatches(forged)]


def test_an_interval_made_up_for_a_single_block_is_found():
    record = make_record(1, timed_steps=10, waivers=("short",))
    forged = edited(record, lambda data: data["result"].update(ci95=[1.0, 2.0]))
    assert [m.field for m in mismatches(forged)] == ["result.ci95"]


def test_a_fraction_of_a_ceiling_without_a_ceiling_is_found(record):
    forged = edited(record, lambda data: data.update(ceilings=None))
    assert [m.field for m in mismatches(forged)] == ["result.fraction_of_ceiling"]


def larger(gemms):
    """Twice the rows in twice the time: the rate stays what it was."""
    for gemm in gemms:
        gemm["m"] *= 2
        gemm["best_s"] *= 2


def one_left_out(gemms):
    gemms.pop()


def one_for_all(gemms):
    """Put one square product in the place of all, of as many FLOPs in the same time."""
    flops = sum(g["m"] * g["k"] * g["n"] * g["count"] for g in gemms)
    seconds = sum(g["best_s"] * g["count"] for g in gemms)
    gemms[1:] = []
    gemms[0].update(m=flops, k=1, n=1, count=1, best_s=seconds)


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("by", [larger, one_left_out, one_for_all])
def test_a_ceiling_of_other_products_than_the_models_is_found(record, when, by):
    forged = edited(record, lambda data: by(data["ceilings"][when]["gemms"]))
    assert f"ceilings.{when}.gemms" in [m.field for m in mismatches(forged)]


def test_a_ceiling_for_another_number_of_tokens_or_precision_is_found(record):
    for field, value in (("tokens", 7), ("precision", "FP32")):
        change_ = break_(f"ceilings.before.{field}", value)
        assert [m.field for m in mismatches(edited(record, change_))] == [
            f"ceilings.before.{field}"
        ]


def with_squares(record):
    """Add a square product to each ceiling: 2048 ** 3 multiply-adds in 0.2 ms, on 8 cores each."""
    square = {"layout": "packed", "size": 2048, "at_once": 8, "best_s": 2e-4}
    best = 8 * 2 * 2048**3 / 2e-4

    def add(data):
        for ceiling in data["ceilings"].values():
            ceiling.update(squares=[square], best_product_flops_per_second=best)

    return edited(record, add)


def test_the_best_product_is_recomputed_from_the_times_of_all(record):
    assert mismatches(with_squares(record)) == ()
    path = "ceilings.before.best_product_flops_per_second"
    found = mismatches(edited(with_squares(record), lambda data: change(data, path)))
    assert [m.field for m in found] == [path]

    def no_faster_than_the_models_own(data):
        gemms = data["ceilings"]["before"]["gemms"]
        data["ceilings"]["before"]["squares"][0]["best_s"] = 10.0
        rates = [2 * g["m"] * g["k"] * g["n"] / g["best_s"] for g in gemms]
        data["ceilings"]["before"]["best_product_flops_per_second"] = max(rates)

    assert mismatches(edited(with_squares(record), no_faster_than_the_models_own)) == ()


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("squares", []),
        ("squares.0.best_s", 1e-3),
        ("squares.0.best_s", 0.0),
        ("squares.0.best_s", -1.0),
        ("squares.0.size", 4096),
        ("squares.0.at_once", 4),
        ("best_product_flops_per_second", None),
    ],
)
def test_a_best_product_without_its_times_is_found(record, path, value):
    forged = edited(with_squares(record), break_(f"ceilings.after.{path}", value))
    assert [m.field for m in mismatches(forged)] == ["ceilings.after.best_product_flops_per_second"]


def test_more_products_at_once_than_the_processor_has_cores_are_found(record):
    def more(data):
        data["ceilings"]["before"]["squares"][0]["at_once"] *= 2
        data["ceilings"]["before"]["best_product_flops_per_second"] *= 2

    found = mismatches(edited(with_squares(record), more))
    assert [m.field for m in found] == ["ceilings.before.squares"]


def test_an_official_window_need_not_be_a_multiple_of_ten_steps():
    record = make_record(2, timed_steps=55)
    assert record.class_ == "official"
    assert mismatches(record) == ()


def test_a_debug_run_sold_as_official_is_found():
    record = make_record(1, timed_steps=20, waivers=("--timed-steps 20",))
    forged = edited(record, lambda data: data.update({"class": "official", "waivers": []}))
    assert {m.field for m in mismatches(forged)} >= {"class", "waivers"}


def test_a_smaller_model_sold_as_official_is_found(record):
    def shrink(data):
        data["config"]["shape_overrides"] = {"num_hidden_layers": 2}

    fields = {m.field for m in mismatches(edited(record, shrink))}
    assert fields >= {"class", "waivers", "workload.shapes", "workload.parameters"}


def test_an_override_to_the_official_value_is_no_waiver(record):
    def repeat(data):
        data["config"]["shape_overrides"] = {"hidden_size": 3200}

    assert mismatches(edited(record, repeat)) == ()


DATA = {"path": "corpus", "kind": "indexed", "sha256": "0" * 64, "tokens": 10**9}


def given_data(data):
    data["config"]["data"] = DATA


@pytest.mark.parametrize("field", [("nonce", "ab" * 16), ("constant_rate", True)], ids=str)
def test_a_run_of_known_draws_sold_as_official_is_found(record, field):
    name, value = field
    forged = edited(record, lambda data: data["config"].update({name: value}))
    assert [m.field for m in mismatches(forged)] == ["class", "waivers"]


def test_a_run_on_data_of_its_own_sold_as_official_is_found(record):
    forged = edited(record, given_data)
    assert [m.field for m in mismatches(forged)] == ["class", "waivers"]

    def labelled(data):
        given_data(data)
        data.update({"class": "debug", "waivers": ["--data corpus"]})
        data["plugin"]["strict"] = False

    assert mismatches(edited(record, labelled)) == ()


@pytest.mark.parametrize("name", workloads.WORKLOADS)
def test_no_workload_is_official_on_data(record, name):
    official = of_workload(record, name)
    found = [m.field for m in mismatches(edited(official, given_data))]
    assert "class" not in [m.field for m in mismatches(official)]
    assert "class" in found


def test_a_metric_nobody_can_recompute_is_found(record):
    metric = {"name": "FOM", "value": 1.0, "unit": "1/s", "formula": "?"}
    forged = edited(record, lambda data: data["result"].update(metrics=[metric]))
    assert [m.field for m in mismatches(forged)] == ["result.metrics"]


def break_(path, value):
    return lambda data: change(data, path, lambda _: value)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("timing.repeats", []),
        ("timing.repeats.0.fence_ns", []),
        ("timing.repeats.0.fence_steps", [2, 2, 2, 2, 2, 2]),
        ("timing.repeats.0.step_ns", []),
        ("timing.repeats.0.stop_ns", -5),
        ("timing.repeats.0.timed_steps", 10**18),
        ("topology.world_size", 0),
        ("topology.ranks", []),
        ("config.parallelism.tp", 10**18),
        ("workload.tokens_per_step", 0),
        ("config.shape_overrides", {"num_hidden_layers": -1}),
        ("config.shape_overrides", {"num_hidden_layers": 10**19}),
        ("config.workload", "other"),
        ("ceilings.before.gemms", []),
        ("ceilings.before.gemms.0.best_s", 0.0),
        ("ceilings.before.gemms.0.best_s", 1e-320),
        ("result.mfu.peak_flops", 0.0),
        ("result.tokens_per_second", 1.7e308),
        ("batch_size_search.trials", []),
    ],
)
def test_a_broken_record_is_a_mismatch_and_never_a_crash(record, path, value):
    assert mismatches(edited(record, break_(path, value)))


def test_a_record_with_millions_of_blocks_is_refused_quickly(record, monkeypatch):
    monkeypatch.setattr(recompute_time, "_MOST_BLOCKS", 3)
    assert "at most 3 blocks" in [m.recomputed for m in mismatches(record)]


@pytest.mark.parametrize(
    ("rules", "timed_steps", "seconds", "official"),
    [("4", 60, 60, 1), ("4", 61, 9, 0), ("3", 61, 60, 0), ("3", 61, 9, 1)],
)
def test_a_window_of_many_steps_is_no_official_one(record, rules, timed_steps, seconds, official):
    def many(data):
        data["rules_version"] = rules
        data["config"]["timed_steps"] = timed_steps
        for timing in data["timing"]["repeats"]:
            timing["stop_ns"] = timing["start_ns"] + seconds * 10**9

    found = [m for m in mismatches(edited(record, many)) if m.field == "class"]
    assert (found == []) is bool(official)


def test_llama_has_the_parameters_and_flops_of_the_rules(record):
    facts = record.workload
    assert (facts.parameters, facts.flops_per_token) == (1_433_680_000, 8_105_164_800)


def test_throughput_is_tokens_over_seconds_by_hand():
    # 2 fences 1 s apart around 10 steps of 2048 tokens: no statistics in between.
    one = make_record(1, timed_steps=10, waivers=("short",))

    def by_hand(data):
        timing = data["timing"]["repeats"][0]
        timing["fence_ns"] = [5_000_000_000, 6_000_000_000]
        timing["start_ns"], timing["stop_ns"] = timing["fence_ns"]
        data["timing"].update(timing)
        data["topology"]["ranks"][0]["fence_ns"] = timing["fence_ns"]
        result = data["result"]
        result["tokens_per_second"] = result["tokens_per_second_per_device"] = 20480.0
        result["mfu"]["value"] = 20480 * 8_105_164_800 / 4e14
        result["metrics"][0]["value"] = 20480 * 8_105_164_800 / 1e12
        peak = data["ceilings"]["before"]["flops_per_second"]
        result["fraction_of_ceiling"] = 20480 * 8_105_164_800 / peak

    assert mismatches(edited(one, by_hand)) == ()


def test_the_interval_of_equal_blocks_is_a_point():
    blocks = [[recompute_time.RecomputedBlock(10, 500_000_000, 1000)] * 5] * 3
    low, high = recompute_time.confidence_interval(blocks)
    assert equal([low, high], [2000.0, 2000.0])


def test_both_paths_give_the_same_interval_to_the_last_bits(record):
    second = [
        [
            recompute_time.RecomputedBlock(b[0] - a[0], b[1] - a[1], 2048 * (b[0] - a[0]))
            for a, b in pairwise(zip(r.fence_steps, r.fence_ns, strict=True))
        ]
        for r in record.timing.repeats
    ]
    ours = recompute_time.confidence_interval(second)
    assert equal(ours, first.confidence_interval(record.timing.repeats, 2048))


@pytest.mark.parametrize("blocks", [(70, 64, 90), (1, 300), (5, 6, 7), (2000,)])
@pytest.mark.parametrize("largest", [2 * 10**8, 2 * 10**18])
def test_many_blocks_are_drawn_by_numpy_bit_for_bit_as_few_are(blocks, largest):
    draw = random.Random(1)
    times = [[draw.randint(largest // 2, largest) for _ in range(n)] for n in blocks]
    repeats = [[recompute_time.RecomputedBlock(1, ns, 2048) for ns in each] for each in times]
    by_numpy = islice(recompute_time._medians_of_many(repeats), 100)
    assert list(by_numpy) == list(islice(recompute_time._medians(repeats), 100))


def test_floats_are_equal_to_nine_digits_and_truth_is_no_number():
    assert equal(1.0, 1.0 + 5e-10)
    assert not equal(1.0, 1.0 + 5e-9)
    assert not equal(1, True)
    assert not equal(0.0, 1e-300)


def test_the_second_path_loads_neither_the_first_nor_torch():
    code = (
        "import sys, llmb.submission.recompute;"
        "first = ('torch', 'llmb.measure', 'llmb.workloads');"
        "print([m for m in sys.modules if m.startswith(first)])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"


# -- workloads ------------------------------------------------------------------------------------

OWN = {"family": "gpt2", "hidden_size": 64, "num_attention_heads": 2, "num_hidden_layers": 1}


def of_workload(record, name, definition=None):
    """Return ``record`` as one of workload ``name``, with every derived number right."""
    workload = workloads.find(name, {}, definition)
    shape, recipe = workload.shape, workload.recipe

    def change_(data):
        data["config"] |= {"workload": name, "definition": definition, "mixed_precision": True}
        data["workload"] |= {
            "name": name,
            "family": workload.family,
            "shapes": asdict(shape),
            "parameters": parameter_count(shape),
            "flops_per_token": flops_per_token(shape),
            "optimizer": asdict(recipe.optimizer),
            "clip_grad_norm": recipe.clip_grad_norm,
        }

    return edited(record, change_)


def about_the_workload(record):
    named = ("workload.shapes", "workload.parameters", "workload.flops_per_token")
    named += ("workload.name", "workload.family", "workload.optimizer", "workload.clip_grad_norm")
    return [m.field for m in mismatches(record) if m.field in (*named, "config.workload")]


@pytest.mark.parametrize("name", workloads.WORKLOADS)
def test_both_paths_agree_on_every_workload(record, name):
    assert about_the_workload(of_workload(record, name)) == []


def test_a_users_own_sizes_are_recomputed_and_are_a_debug_run(record):
    own = of_workload(record, "mine", OWN)
    # Its optimizer is the fixed workload's.
    assert about_the_workload(own) == []
    assert "class" in [m.field for m in mismatches(own)]


@pytest.mark.parametrize("field", ["family", "optimizer", "clip_grad_norm", "parameters", "name"])
def test_another_workloads_facts_are_found(record, field):
    honest, other = of_workload(record, "gpt2-125m"), of_workload(record, "llama-1.4b")

    def mix(data):
        data["workload"][field] = other.model_dump(mode="json")["workload"][field]

    assert f"workload.{field}" in about_the_workload(edited(honest, mix))


@pytest.mark.parametrize(
    "definition",
    [
        {"family": "mamba"},
        {"hidden_size": 64},
        {**OWN, "d_model": 3},
        {**OWN, "hidden_size": "wide"},
        {**OWN, "num_attention_heads": 0},
        {**OWN, "sequence_length": 2.5},
        {**OWN, "vocab_size": None},
        {"family": "llama", "num_key_value_heads": 0},
    ],
)
def test_a_definition_that_is_none_is_found_and_breaks_nothing(record, definition):
    def change_(data):
        data["config"] |= {"workload": "mine", "definition": definition}

    assert "config.workload" in about_the_workload(edited(record, change_))


def test_a_run_that_took_less_time_than_all_its_windows_is_found():
    made = make_record(repeats=3)
    windows = [(r.stop_ns - r.start_ns) / 1e9 for r in made.timing.repeats]

    rates = {"flops_per_second": {"bfloat16": 1e12}, "bytes_per_second": 1e10}

    def found(real_s):
        said = {
            "estimated_s": 1.0,
            "real_s": real_s,
            "within_s": None,
            "start_s": 1.0,
            "rates": rates,
        }
        return mismatches(edited(made, lambda data: data.update(duration=said)))

    assert found(sum(windows) + 1) == ()
    assert found(max(windows) + 1) != ()


def test_a_batch_size_that_was_measured_and_is_not_the_fastest_is_found(record):
    trials = record.batch_size_search.trials
    rates = {t.batch_size: t.tokens_per_second for t in trials if t.status == "measured"}
    slower = min(rates, key=rates.get)
    assert rates[slower] < rates[record.batch_size_search.best]
    forged = edited(record, lambda data: data["batch_size_search"].update(best=slower))
    found = [m for m in mismatches(forged) if m.field == "batch_size_search.best"]
    assert found[0].recomputed == "the measured batch size with the highest throughput"
    assert found[1].recomputed == record.config.batch_size


@pytest.mark.parametrize(("status", "rate"), [("measured", None), ("out_of_memory", 5.0)])
def test_a_trial_has_a_rate_exactly_where_it_was_measured(record, status, rate):
    def change_(data):
        data["batch_size_search"]["trials"][0] |= {"status": status, "tokens_per_second": rate}

    fields = [m.field for m in mismatches(edited(record, change_))]
    assert "batch_size_search.trials.0.tokens_per_second" in fields
