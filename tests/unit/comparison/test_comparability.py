"""Which differences refuse a comparison, which mark it, which are only said."""

from __future__ import annotations

import pytest

from llmb.comparison.comparability import Weight, differences
from llmb.records import references
from tests.builders import edited
from tests.unit.builders_times import template

OTHER_RUN = "f" * 32
#: The reference of the first bundles, whose llama computes as today's.
OLDER = "17021ed72954ec1e5343180f741ee8a83891feccf9231d52781d69cb14af9cf8"


def changed(*path, value):
    """Return the template as another run with one value changed."""

    def change(data):
        data["run_id"] = OTHER_RUN
        data["precision"] |= {"effective": "BF16", "how": "measured"}
        data["audit"]["verdict"] = "CONSISTENT"
        *parents, last = path
        for key in parents:
            data = data[key]
        data[last] = value

    return edited(template(), change)


def weights(base, other):
    return {difference.item: difference.weight for difference in differences(base, other)}


@pytest.fixture(scope="module")
def base():
    return edited(changed("seed_commitment", value=None), lambda data: data.update(run_id="a" * 32))


def test_two_runs_of_one_configuration_have_nothing_to_be_said_of_them(base) -> None:
    assert differences(base, changed("seed_commitment", value=None)) == ()


@pytest.mark.parametrize(
    ("path", "value", "item"),
    [
        (("workload", "name"), "gpt2-1.5b", "workload"),
        (("workload", "mode"), "forward", "mode"),
        (("workload", "family"), "gpt2", "family"),
        (("workload", "shapes", "hidden_size"), 64, "sizes"),
        (("workload", "optimizer", "lr"), 1.0, "optimizer"),
        (("workload", "clip_grad_norm"), 1.0, "clip_grad_norm"),
        (("config", "prompt_length"), 6, "prompt_length"),
        (("config", "new_tokens"), 200, "new_tokens"),
        (("audit", "verdict"), "INVALID", "verdict"),
    ],
)
def test_other_work_and_invalid_runs_are_refused(base, path, value, item) -> None:
    other = changed(*path, value=value)
    for pair in ((base, other), (other, base)):
        assert weights(*pair)[item] is Weight.REFUSED


@pytest.mark.parametrize(
    ("path", "value", "item"),
    [
        (("precision", "effective"), "FP8", "effective_precision"),
        (("precision", "effective"), None, "effective_precision"),
        (("rules_version",), "99", "rules_version"),
        (("class",), "debug", "class"),
        (("waivers",), ["--audit off"], "waivers"),
        (("config", "dynamic"), True, "dynamic"),
        (("run_id",), "a" * 32, "run"),
    ],
)
def test_what_the_rules_keep_apart_is_marked_and_shown(base, path, value, item) -> None:
    other = changed(*path, value=value)
    for pair in ((base, other), (other, base)):
        assert weights(*pair) == {item: Weight.NOT_COMPARABLE}


@pytest.mark.parametrize(
    ("path", "value", "item"),
    [
        (("config", "seed"), 8, "seed"),
        (("config", "executor"), "inductor", "executor"),
        (("config", "batch_size"), 4, "batch_size"),
        (("plugin", "version"), "2.0", "plugin"),
        (("plugin", "options"), {"level": 4}, "plugin_options"),
        (("system", "torch"), "2.9.1", "torch"),
        (("system", "env"), {}, "env"),
        (("timing", "timed_steps"), 500, "timed_steps"),
        (("timing", "step_clock"), "device", "step_clock"),
        (("topology", "world_size"), 8, "world_size"),
        (("reference_digest",), "0" * 64, "reference_digest"),
        (("audit", "verdict"), "FLAGGED", "verdict"),
        (("audit", "verdict"), "UNVERIFIED", "verdict"),
    ],
)
def test_what_a_submitter_may_choose_is_said_alone(base, path, value, item) -> None:
    assert weights(base, changed(*path, value=value)) == {item: Weight.NOTED}


def test_two_references_that_compute_the_same_for_the_family_are_one(base) -> None:
    older = changed("reference_digest", value=OLDER)
    assert weights(base, older) == {}
    first = changed("reference_digest", value=references.table().references[0].digest)
    assert weights(base, first) == {"reference_digest": Weight.NOTED}


def test_two_debug_runs_are_a_before_and_an_after(base) -> None:
    def debug(data):
        data["class"] = "debug"

    other = edited(changed("class", value="debug"), debug)
    assert weights(edited(base, debug), other) == {"class": Weight.NOTED}


@pytest.mark.parametrize(
    ("waivers", "weight"),
    [
        (["--hidden-size 64", "a window of 2.0 s (official: 5; --timed-steps 61)"], Weight.NOTED),
        (["--hidden-size 64"], Weight.NOT_COMPARABLE),
        (
            ["--hidden-size 32", "a window of 0.8 s (official: 5; --timed-steps 150)"],
            Weight.NOT_COMPARABLE,
        ),
    ],
)
def test_the_measured_length_of_a_short_window_is_no_waiver_of_its_own(
    base, waivers, weight
) -> None:
    short = ["--hidden-size 64", "a window of 0.8 s (official: 5; --timed-steps 150)"]
    first, second = changed("waivers", value=short), changed("waivers", value=waivers)
    assert weights(first, second)["waivers"] is weight
    assert "waivers" not in weights(first, first)


def test_the_gravest_comes_first_and_says_both_values(base) -> None:
    def change(data):
        data["workload"]["name"], data["rules_version"], data["config"]["seed"] = "x", "1", 9

    found = differences(base, edited(changed("class", value="debug"), change))
    assert [difference.weight for difference in found] == sorted(
        (difference.weight for difference in found), key=list(Weight).index
    )
    assert str(found[0]).startswith("workload: llama-1.4b against x (")


def test_of_two_tables_only_the_entries_that_differ_are_said(base) -> None:
    found = differences(base, changed("system", "drivers", value={"fast": "1.2", "new": "3"}))
    assert (found[0].base, found[0].other) == ("none", '{"new": "3"}')


def test_two_formats_that_were_not_observed_are_not_the_same_format(base) -> None:
    one = changed("precision", "effective", value=None)
    other = edited(one, lambda data: data.update(run_id="a" * 32))
    assert weights(one, other)["effective_precision"] is Weight.NOT_COMPARABLE


def test_another_verdict_is_said_with_both(base) -> None:
    other = changed("audit", "verdict", value="UNVERIFIED")
    (found,) = (one for one in differences(base, other) if one.item == "verdict")
    assert (found.base, found.other) == ("CONSISTENT", "UNVERIFIED")


@pytest.mark.parametrize(
    ("path", "value", "item"),
    [
        (("precision", "declared"), "FP32", "declared_precision"),
        (("config", "device"), "slow:1", "device"),
        (("system", "cpu", "model"), "Other", "processor"),
        (("system", "cpu", "usable_cores"), 3, "cores"),
        (("topology", "nodes"), 2, "nodes"),
        (("config", "parallelism", "sequence_parallel"), True, "parallelism"),
        (("plugin", "name"), "other", "plugin"),
        (("plugin", "distribution"), "other", "plugin"),
        (("plugin", "strict"), False, "strict"),
        (("config", "accumulate"), 2, "accumulate"),
        (("config", "mixed_precision"), True, "mixed_precision"),
        (("config", "sac_freq"), "1/2", "sac_freq"),
        (("config", "generate_scope"), "step", "generate_scope"),
        (("workload", "tokens"), "data 0123456789ab", "tokens"),
        (("config", "prompt_tokens"), [1, 2], "prompt"),
        (("config", "weights"), {"path": "w", "sha256": "b" * 64}, "weights"),
        (("timing", "warmup_steps"), 500, "warmup_steps"),
        (("timing", "repeats"), [], "repeats"),
        (("config", "audit"), "quick", "audit"),
        (("system", "python"), "3.13.0", "python"),
        (("system", "os"), "Other", "os"),
        (("llmb_version",), "99.0", "llmb_version"),
    ],
)
def test_everything_else_that_is_free_is_said_under_its_own_name(base, path, value, item) -> None:
    assert weights(base, changed(*path, value=value)) == {item: Weight.NOTED}


def test_the_mode_of_a_compiler_is_said_where_there_is_one(base) -> None:
    tuned = changed("config", "compile_mode", value="max-autotune")
    assert weights(base, tuned) == {}
    found = differences(
        base, edited(tuned, lambda data: data["config"].update(executor="inductor"))
    )
    assert [(one.item, one.other) for one in found] == [("executor", "inductor max-autotune")]


def test_values_are_said_in_few_words(base) -> None:
    found = differences(base, changed("config", "mixed_precision", value=True))
    assert str(found[0]) == "mixed_precision: no against yes"
    (run,) = differences(base, edited(base, lambda data: None))
    assert str(run) == f"run: {'a' * 32} (one run twice)"
