"""Two runs with known step times: what is said of them, and of what nothing is said."""

from __future__ import annotations

from functools import cache

import pytest

from llmb.comparison import figures
from llmb.comparison.compare import compare, compare_runs
from llmb.comparison.figures import KNOWN, run_of
from llmb.config import Mode
from llmb.errors import BundleRefusedError
from llmb.measure import statistics
from llmb.workloads import WORKLOADS
from tests.builders import make_record
from tests.unit.builders_times import noise, of_workload, record_of


def named(run_id, verdict="CONSISTENT", **more):
    """Return an edit that makes a run of its own, observed and CONSISTENT."""

    def edit(data):
        data["run_id"] = run_id * 32
        data["precision"] |= {"effective": "BF16", "how": "measured"}
        data["audit"]["verdict"] = verdict
        for section, values in more.items():
            data[section] |= values

    return edit


def runs(mean, *, repeats=3, seed=0, name="b", **options):
    every = [noise(50, seed=seed + n, mean=mean, deviation=0.01) for n in range(repeats)]
    return record_of(*every, edit=named(name), **options)


@cache
def base():
    return run_of(runs(0.1, name="a"))


def against_base(other):
    return compare_runs(base(), run_of(other))


@pytest.fixture
def few_resamples(monkeypatch):
    """Draw a few hundred times, not thousands, for a spread of steps: it is 4 % uncertain then."""
    base()  # which is kept
    monkeypatch.setattr(figures, "_MOST_DRAWN", 45_000)


def test_a_tenth_is_shown_with_an_interval_that_holds_it() -> None:
    found = compare(base().record, runs(0.1 / 1.1, seed=50))
    rate = found.ratio("tokens_per_second")
    assert rate.interval[0] < 1.1 < rate.interval[1]
    assert rate.interval[0] > 1.05
    assert rate.outcome == "better"
    assert found.ratio("step_time_s").outcome == "better"
    assert found.steps.p_value < 1e-6
    assert found.conclusion[0].endswith("more tokens a second: a difference is shown")
    assert len(found.conclusion) == 1


def test_a_slower_run_is_worse_in_rate_and_in_time() -> None:
    found = against_base(runs(0.12, seed=50))
    assert found.ratio("tokens_per_second").outcome == "worse"
    assert found.ratio("step_time_s").outcome == "worse"
    assert "fewer tokens a second" in found.conclusion[0]


@pytest.mark.usefixtures("few_resamples")
def test_equal_runs_are_called_different_at_most_about_as_often_as_promised() -> None:
    shown = 0
    for seed in range(25):
        found = against_base(runs(0.1, seed=1000 + 10 * seed))
        shown += "a difference is shown" in found.conclusion[0]
    assert shown <= 3


def test_processes_that_scatter_hide_what_their_steps_alone_would_show() -> None:
    def of(name, means, seed):
        every = [noise(50, seed=seed + n, mean=m, deviation=0.01) for n, m in enumerate(means)]
        return record_of(*every, edit=named(name))

    found = compare(of("a", (0.09, 0.1, 0.11), 0), of("b", (0.095, 0.105, 0.115), 10))
    assert found.steps.p_value < 0.01, "the steps of these six processes do differ"
    assert found.ratio("tokens_per_second").outcome == "no difference shown"
    assert found.conclusion[0].startswith("no difference in tokens a second is shown")


def test_of_single_processes_it_is_said_what_is_not_shown() -> None:
    found = compare(runs(0.1, repeats=1, name="a"), runs(0.08, repeats=1, seed=9))
    assert found.ratio("tokens_per_second").outcome == "better"
    assert "what differs from process to process is not in the interval" in found.conclusion[1]


def test_other_precisions_are_shown_and_not_ranked() -> None:
    other = record_of(
        *[noise(50, seed=n, mean=0.05) for n in range(3)],
        edit=named("b", precision={"effective": "FP8"}),
    )
    found = against_base(other)
    assert found.ratio("tokens_per_second").ratio > 1.5
    assert "not comparable (effective_precision)" in found.conclusion[-1]


def test_a_refused_comparison_has_no_figures() -> None:
    found = against_base(of_workload("gpt2-125m"))
    assert [one.item for one in found.refusals] == ["workload"]
    assert (found.ratios, found.steps, found.conclusion) == ((), None, ())


def test_the_interval_of_a_run_is_the_one_its_record_has() -> None:
    record = make_record(3)
    assert run_of(record).figures["tokens_per_second"].interval == record.result.ci95


def test_every_figure_is_made_of_stamps_and_equals_what_the_record_says() -> None:
    record = make_record(3)
    figures, result = run_of(record).figures, record.result
    assert figures["tokens_per_second"].value == result.tokens_per_second
    assert figures["step_time_s"].value == result.step_time_s.median
    assert figures["mfu"].value == pytest.approx(result.mfu.value)
    assert figures["fraction_of_ceiling"].value == pytest.approx(result.fraction_of_ceiling)
    assert figures["tokens_per_joule"].value == pytest.approx(result.energy.tokens_per_joule)
    assert figures["peak_memory_bytes"].value == result.peak_memory_bytes
    for metric in result.metrics:
        assert figures[metric.name].value == pytest.approx(metric.value)
        assert figures[metric.name].unit == metric.unit


@pytest.mark.parametrize(
    ("document", "name"),
    [
        ("alcf", "fom"),
        ("alcf", "mean_step_time_s"),
        ("nemo", "node_hours_per_100k_steps"),
        ("litgpt", "time_45_steps_s"),
    ],
)
def test_metrics_of_the_mean_step_have_the_relative_error_of_the_throughput(document, name) -> None:
    workload = next(
        one.name
        for one in WORKLOADS.values()
        if one.document == document and Mode.TRAIN in one.modes
    )
    figures = run_of(of_workload(workload)).figures
    rate, metric = figures["tokens_per_second"], figures[name]
    assert metric.spread.error / metric.value == pytest.approx(rate.spread.error / rate.value)
    assert metric.better == ("more" if name == "fom" else "less")


@pytest.mark.usefixtures("few_resamples")
def test_every_metric_of_every_workload_has_a_direction_and_is_known_to_conditions() -> None:
    for workload in WORKLOADS.values():
        for mode in workload.modes:
            for name, figure in run_of(of_workload(workload.name, mode)).figures.items():
                assert name in KNOWN
                assert figure.better is not None, name


def test_steps_of_other_sizes_are_not_compared_but_their_times_a_token_are() -> None:
    other = runs(0.2, tokens=2 * 2048, seed=50)
    found = against_base(other)
    assert found.ratio("step_time_s") is None
    (reason,) = (one.reason for one in found.left_out if one.name == "step_time_s")
    assert "2,048 tokens" in reason
    assert "4,096 tokens" in reason
    assert found.ratio("tokens_per_second").outcome == "no difference shown"
    assert 0.3 < found.steps.other_is_faster < 0.7


def test_clocks_are_not_mixed_stretches_between_fences_are_tested_instead() -> None:
    found = against_base(runs(0.08, seed=50, clock="device"))
    assert found.ratio("step_time_s") is None
    assert "host clock; against steps of 2,048 tokens, device clock" in str(found.left_out)
    assert found.steps.of.startswith("stretches between fences")
    assert found.steps.values == (15, 15)
    assert any(one.item == "step_clock" for one in found.differences)


def test_enqueued_steps_have_no_times_of_their_own() -> None:
    a, b = (runs(0.1, seed=s, name=n, clock="enqueue") for s, n in ((0, "a"), (50, "b")))
    found = compare(a, b)
    assert found.steps.of.startswith("stretches between fences")
    assert found.ratio("step_time_s") is not None, "means between fences, on both sides"


def test_fences_at_other_distances_leave_nothing_to_test() -> None:
    found = against_base(runs(0.1, seed=50, clock="enqueue", every=5))
    assert found.steps is None
    assert any(one.name == "rank test" and "10 and 5" in one.reason for one in found.left_out)


@pytest.mark.parametrize("change", [{"scope": "node"}, {"source": "estimated"}])
def test_energy_of_other_scope_or_source_is_not_compared(change) -> None:
    def edit(data):
        named("b")(data)
        data["result"]["energy"] |= change

    other = record_of(*[noise(50, seed=n) for n in range(3)], edit=edit)
    found = against_base(other)
    assert found.ratio("tokens_per_joule") is None
    assert any(one.name == "tokens_per_joule" for one in found.left_out)


def test_what_one_run_did_not_measure_is_left_out_and_said() -> None:
    def edit(data):
        named("b")(data)
        data["result"]["energy"] = None

    other = record_of(*[noise(50, seed=n) for n in range(3)], edit=edit)
    other = run_of(other)
    reasons = {one.name: one.reason for one in compare_runs(base(), other).left_out}
    assert reasons["tokens_per_joule"] == "not measured in the other run"
    assert {one.name: one.reason for one in compare_runs(other, base()).left_out}[
        "tokens_per_joule"
    ] == "not measured in the base run"


def test_a_headline_that_the_stamps_do_not_give_is_refused() -> None:
    forged = record_of(noise(50, seed=1), edit=lambda d: d["result"].update(tokens_per_second=9e9))
    with pytest.raises(BundleRefusedError, match="its stamps give"):
        against_base(forged)


@pytest.mark.parametrize(
    "broken",
    [
        {"stop_ns": 0},
        {"step_ns": []},
        {"fence_ns": [1], "fence_steps": [1]},
        {"fence_ns": [1], "fence_steps": [1, 2]},
        {"step_tokens": [0] * 60},
        {"step_tokens": [5]},
    ],
)
def test_stamps_that_make_no_window_are_refused_in_one_line(broken) -> None:
    def edit(data):
        data["timing"]["repeats"][0] |= broken

    with pytest.raises(BundleRefusedError, match="no figures can be made"):
        run_of(record_of(noise(50, seed=1), edit=edit))


@pytest.mark.parametrize("absurd", [{"tokens_per_step": 10**200}, {"flops_per_token": 10**300}])
def test_numbers_that_nothing_measures_are_refused(absurd) -> None:
    def edit(data):
        named("b")(data)
        data["workload"] |= absurd

    found = record_of(noise(50, seed=1), edit=edit)
    with pytest.raises(BundleRefusedError, match="no figures can be made"):
        run_of(found)


def test_a_figure_below_0_is_left_out() -> None:
    def edit(data):
        named("b")(data)
        data["workload"]["flops_per_token"] = -1

    reasons = {
        one.name: one.reason
        for one in against_base(record_of(noise(50, seed=1), edit=edit)).left_out
    }
    assert reasons["mfu"] == "not above 0"


def test_a_strangers_million_fences_are_refused_before_they_are_resampled() -> None:
    with pytest.raises(BundleRefusedError, match="fences"):
        run_of(record_of([0.001] * 11_000, every=1))


def test_the_spread_of_throughput_is_none_without_repeats() -> None:
    assert statistics.throughput_spread((), 1) is None
