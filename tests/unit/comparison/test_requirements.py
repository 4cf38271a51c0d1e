"""The grammar of conditions, and which end of an interval decides."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmb.comparison.compare import compare_runs
from llmb.comparison.figures import run_of
from llmb.comparison.requirements import check_names, decide, facts_of, from_file, parse
from llmb.errors import UsageError
from llmb.records.finding import RULES_VERSION
from tests.unit.builders_times import noise, record_of
from tests.unit.comparison.test_compare import base, named, runs


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("tokens_per_second>=0.95*base", ("tokens_per_second", ">=", 0.95, True, None)),
        (" tokens_per_second >= 0.95 * base ", ("tokens_per_second", ">=", 0.95, True, None)),
        ("step_time_s<base", ("step_time_s", "<", 1.0, True, None)),
        ("tokens_per_joule>12.5", ("tokens_per_joule", ">", 12.5, False, None)),
        ("peak_memory_bytes<=8e10", ("peak_memory_bytes", "<=", 8e10, False, None)),
        ("verdict==CONSISTENT", ("verdict", "==", None, False, "CONSISTENT")),
        ("verdict>=FLAGGED", ("verdict", ">=", None, False, "FLAGGED")),
        ("class!=debug", ("class", "!=", None, False, "debug")),
        ("rules_version==2", ("rules_version", "==", None, False, "2")),
        ("workload==llama-1.4b", ("workload", "==", None, False, "llama-1.4b")),
        ("repeats>=3", ("repeats", ">=", 3.0, False, None)),
    ],
)
def test_a_condition_is_name_operator_and_value(text, read) -> None:
    one = parse(text)
    assert (one.name, one.operator, one.number, one.of_base, one.word) == read


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "NAME OPERATOR VALUE"),
        ("tokens_per_second", "NAME OPERATOR VALUE"),
        ("tokens_per_second=>1", "NAME OPERATOR VALUE"),
        ("tokens_per_second=1", "NAME OPERATOR VALUE"),
        ("tokens_per_second>=-1", "NAME OPERATOR VALUE"),
        ("tokens_per_second>=base*0.95", "NAME OPERATOR VALUE"),
        ("tokens_per_second>=0.95*other", "NAME OPERATOR VALUE"),
        ("tokens_per_second>=1 and 1", "NAME OPERATOR VALUE"),
        ("__import__('os')>=1", "NAME OPERATOR VALUE"),
        ("tokens_per_second>=" + "9" * 1000, "NAME OPERATOR VALUE"),
        ("tokens_per_second>=1e999", "too large"),
        ("tokens_per_second>=nan", "is a number"),
        ("tokens_per_second>=many", "is a number"),
        ("tokens_per_second==1", "alone"),
        ("verdict==FINE", "INVALID, UNVERIFIED, FLAGGED, CONSISTENT, REPRODUCED"),
        ("verdict!=consistent", "is one of"),
        ("verdict>=0.95*base", "takes a name"),
        ("class>=debug", "== and != alone"),
        ("strict==yes", "true, false"),
        ("repeats>=1*base", "plain number"),
        ("repeats>=many", "is a number"),
        ("tokens_per_second\n>=1\x00", "NAME OPERATOR VALUE"),
    ],
)
def test_anything_else_is_refused_with_what_would_do(text, words) -> None:
    with pytest.raises(UsageError, match=words.replace("*", r"\*")) as caught:
        parse(text)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 500


def decided(text, run, base=None):
    comparison = compare_runs(base, run) if base is not None else None
    return decide(parse(text), run, comparison)


def test_the_lower_end_decides_at_least_and_the_upper_end_at_most() -> None:
    other = run_of(runs(0.1, seed=50))
    rate = compare_runs(base(), other).ratio("tokens_per_second")
    low, high = rate.interval
    for text, met in (
        (f"tokens_per_second>={low * 0.9999:.12f}*base", True),
        (f"tokens_per_second>={low * 1.0001:.12f}*base", False),
        (f"tokens_per_second<={high * 1.0001:.12f}*base", True),
        (f"tokens_per_second<={high * 0.9999:.12f}*base", False),
    ):
        found = decided(text, other, base())
        assert found.met is met
        assert ("lower" if ">" in text else "upper") in found.why
    assert low < rate.ratio < high


def test_a_run_alone_is_held_to_plain_numbers_by_its_own_interval() -> None:
    low, high = base().figures["tokens_per_second"].interval
    assert decided(f"tokens_per_second>={low - 1:.6f}", base()).met
    assert not decided(f"tokens_per_second>={low + 1:.6f}", base()).met
    assert decided(f"tokens_per_second<={high + 1:.6f}", base()).met


def test_a_figure_without_an_interval_is_taken_as_it_is_and_that_is_said() -> None:
    found = decided("peak_memory_bytes<=20000000000", base())
    assert found.met
    assert "it has no interval" in found.why


def test_what_was_not_measured_is_not_met() -> None:
    def edit(data):
        named("b")(data)
        data["result"]["energy"] = None

    other = run_of(record_of(*[noise(50, seed=n) for n in range(3)], edit=edit))
    for found in (
        decided("tokens_per_joule>=0", other),
        decided("tokens_per_joule>=0.1*base", other, base()),
        decided("fom>=0", other),
    ):
        assert found.met is False
        assert "not measured" in found.why


def test_a_condition_on_the_base_needs_one_and_a_refused_comparison_decides_nothing() -> None:
    with pytest.raises(UsageError, match="names base, and one run is given"):
        decided("tokens_per_second>=0.95*base", base())
    invalid = run_of(record_of(noise(50, seed=1), edit=named("b", verdict="INVALID")))
    assert decided("tokens_per_second>=0.95*base", invalid, base()).met is None
    assert decided("verdict>=CONSISTENT", invalid, base()).met is False


def test_verdicts_are_in_the_order_of_the_rules() -> None:
    def of(verdict):
        return run_of(record_of(noise(50, seed=1), edit=named("b", verdict=verdict)))

    assert decided("verdict==CONSISTENT", of("CONSISTENT")).met
    assert not decided("verdict==CONSISTENT", of("FLAGGED")).met
    assert decided("verdict>=CONSISTENT", of("REPRODUCED")).met
    assert not decided("verdict>=CONSISTENT", of("UNVERIFIED")).met
    assert decided("verdict!=INVALID", of("FLAGGED")).met
    above = decided("verdict==CONSISTENT", of("REPRODUCED"))
    assert above.met is False
    assert "verdict>=CONSISTENT" in above.why


@pytest.mark.parametrize(
    ("text", "met"),
    [
        ("class==official", True),
        ("class!=official", False),
        ("effective_precision==BF16", True),
        ("effective_precision==FP32", False),
        ("repeats==3", True),
        ("repeats>=4", False),
        ("world_size!=1", False),
        ("strict==true", True),
        (f"rules_version=={RULES_VERSION}", True),
    ],
)
def test_facts_are_compared_as_they_are(text, met) -> None:
    assert decided(text, base()).met is met


def test_a_name_that_nothing_has_is_refused_with_what_there_is() -> None:
    right = [parse("fom>=1"), parse("tokens_per_second>=1"), parse("verdict!=INVALID")]
    check_names(right, [base()])
    with pytest.raises(UsageError, match=r"'tokens_per_secnd'.*tokens_per_second.*verdict"):
        check_names([parse("tokens_per_secnd>=1")], [base()])


def test_a_file_holds_a_list_of_them(tmp_path) -> None:
    path = tmp_path / "contract.toml"
    path.write_text("# of 2026\nrequire = ['verdict==CONSISTENT', \"repeats >= 3\"]\n")
    assert [one.text for one in from_file(path)] == ["verdict==CONSISTENT", "repeats >= 3"]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"require = [", "is not TOML"),
        (b"require = 'verdict==CONSISTENT'", "has no list of texts"),
        (b"require = []", "has no list of texts"),
        (b"require = [1]", "has no list of texts"),
        (b"", "has no list of texts"),
        (b"required = ['verdict==CONSISTENT']", "has 'required'"),
        (b"require = ['speed']", "NAME OPERATOR VALUE"),
        (b"\xff\xfe", "is not TOML"),
        (b"#" * (2**20 + 1), "longer than"),
        (b"a = " + b"[" * 100_000, "is not TOML"),
    ],
)
def test_a_file_of_anything_else_is_refused_in_one_line(tmp_path, content, words) -> None:
    path = tmp_path / "contract.toml"
    path.write_bytes(content)
    with pytest.raises(UsageError, match=words) as caught:
        from_file(path)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_there_is_refused(tmp_path) -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        from_file(tmp_path / "none.toml")


@given(st.text(alphabet=st.sampled_from("abez_019.*<>=! \n\x00é") | st.characters(), max_size=60))
def test_any_text_is_a_condition_or_refused_in_one_line(text) -> None:
    said, one = "", None
    try:
        one = parse(text)
    except UsageError as error:
        said = str(error)
    assert said.isprintable()
    assert said or (one.number is None) != (one.word is None)


@pytest.mark.parametrize(
    "name",
    [
        *("workload", "mode", "plugin", "executor", "declared_precision", "world_size"),
        *("batch_size", "timed_steps", "repeats", "warmup_steps", "class"),
    ],
)
def test_every_fact_of_a_run_is_the_records_own(name) -> None:
    right = str(facts_of(base())[name])
    record = base().record
    config, timing = record.config, record.timing
    own = {
        "workload": record.workload.name,
        "mode": record.workload.mode,
        "plugin": record.plugin.name,
        "executor": config.executor,
        "declared_precision": record.precision.declared,
        "world_size": str(record.topology.world_size),
        "batch_size": str(config.batch_size),
        "timed_steps": str(timing.timed_steps),
        "warmup_steps": str(timing.warmup_steps),
        "repeats": str(len(timing.repeats)),
        "class": record.class_,
    }
    assert right == own[name]
    assert decided(f"{name}=={right}", base()).met
    assert not decided(f"{name}!={right}", base()).met


@pytest.mark.parametrize(
    ("operator", "below", "at", "above"),
    [
        (">=", False, True, True),
        (">", False, False, True),
        ("<=", True, True, False),
        ("<", True, False, False),
        ("==", False, True, False),
        ("!=", True, False, True),
    ],
)
def test_each_operator_holds_where_it_says(operator, below, at, above) -> None:
    found = [decided(f"repeats{operator}{limit}", base()).met for limit in (4, 3, 2)]
    assert found == [below, at, above]


@pytest.mark.parametrize(
    ("operator", "met"), [(">=", True), (">", False), ("<=", True), ("<", False)]
)
def test_a_figure_exactly_at_its_limit_meets_or_not_as_written(operator, met) -> None:
    peak = base().figures["peak_memory_bytes"].value
    assert decided(f"peak_memory_bytes{operator}{peak:.0f}", base()).met is met
