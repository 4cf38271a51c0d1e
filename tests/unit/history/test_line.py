"""The line of a run, and the runs that are one series."""

from __future__ import annotations

import math

import pytest

from llmb.errors import BundleRefusedError
from llmb.history.line import line_of, line_of_a_stranger, work_of
from llmb.history.series import LineFilter, series_of
from llmb.records.repository import Head
from tests.builders import edited, make_record
from tests.unit.builders_history import CEILING, line, lines

RECORD = edited(make_record(1), lambda data: data.update(batch_size_search=None))


def changed(**sections):
    def edit(data):
        for section, values in sections.items():
            data[section] |= values

    return edited(RECORD, edit)


def test_a_line_has_the_figures_and_the_facts_of_its_record() -> None:
    found = line_of(RECORD, "a-run", Head("a" * 40, "main"), "debug")
    assert found.tokens_per_second == RECORD.result.tokens_per_second
    assert found.ci95 == RECORD.result.ci95
    ceilings = RECORD.ceilings
    assert found.ceiling == max(ceilings.before.flops_per_second, ceilings.after.flops_per_second)
    assert (found.commit, found.branch, found.preset) == ("a" * 40, "main", "debug")
    assert (found.run_id, found.verdict) == (RECORD.run_id, RECORD.audit.verdict)


@pytest.mark.parametrize(
    "change",
    [
        {"config": {"seed": 99}},
        {"system": {"torch": "9"}},
        {"plugin": {"version": "9"}},
        {"workload": {"tokens_per_step": 999}},
    ],
    ids=str,
)
def test_seed_versions_and_machine_are_of_one_work(change) -> None:
    assert work_of(changed(**change)) == work_of(RECORD)


@pytest.mark.parametrize(
    "change",
    [
        {"config": {"batch_size": 7}},
        {"config": {"executor": "inductor"}},
        {"config": {"accumulate": 2}},
        {"precision": {"declared": "FP32"}},
        {"plugin": {"name": "acme"}},
        {"plugin": {"options": {"x": 1}}},
        {"workload": {"name": "gpt2-1.5b"}},
    ],
    ids=str,
)
def test_other_settings_are_other_work(change) -> None:
    assert work_of(changed(**change)) != work_of(RECORD)


def test_a_searched_batch_size_is_no_setting() -> None:
    searched = make_record(1)
    other = edited(searched, lambda data: data["config"].update(batch_size=7))
    assert work_of(other) == work_of(searched) != work_of(RECORD)


def test_figures_of_a_stranger_are_computed_from_the_stamps() -> None:
    rate = RECORD.result.tokens_per_second
    lying = changed(result={"fraction_of_ceiling": 0.999, "ci95": [rate, rate]})
    found, own = line_of_a_stranger(lying, "x"), line_of_a_stranger(RECORD, "x")
    assert (found.fraction_of_ceiling, found.ci95) == (own.fraction_of_ceiling, own.ci95)
    with pytest.raises(BundleRefusedError, match="its stamps give"):
        line_of_a_stranger(changed(result={"tokens_per_second": 2 * rate}), "x")


def test_a_stranger_with_a_field_of_another_form_is_refused() -> None:
    with pytest.raises(BundleRefusedError, match="created_utc"):
        line_of_a_stranger(edited(RECORD, lambda data: data.update(created_utc="\x1b[2J")), "x")


def test_runs_of_different_work_are_never_one_series() -> None:
    found = series_of([*lines([1, 2, 3]), line(9, work="1" * 16)])
    assert [len(one.lines) for one in found] == [1, 3]


def test_a_series_is_in_the_order_of_time_without_invalid_and_repeated_runs() -> None:
    given = [line(2), line(0), line(1, verdict="INVALID"), line(2, 7.0)]
    (found,) = series_of(given)
    assert [(one.run_id, one.tokens_per_second) for one in found.lines] == [
        (f"{0:032x}", 1000.0),
        (f"{2:032x}", 7.0),
    ]


@pytest.mark.parametrize(
    ("wanted", "kept"),
    [
        ({"workload": "llama-1.4b"}, 4),
        ({"workload": "x"}, 0),
        ({"branch": "topic"}, 1),
        ({"plugin": "acme"}, 1),
        ({"precision": "FP8"}, 1),
        ({"machine": "xeon"}, 1),
        ({"last": 2}, 2),
    ],
    ids=str,
)
def test_a_filter_keeps_what_it_names(wanted, kept) -> None:
    given = [
        line(0, branch="topic"),
        line(1, plugin="acme"),
        line(2, precision="FP8"),
        line(3, cpu="Intel Xeon"),
    ]
    found = series_of(given, LineFilter(**wanted))
    assert sum(len(one.lines) for one in found) == kept


def test_several_machines_are_drawn_by_their_share() -> None:
    (one,) = series_of(lines([1000, 1010]))
    (two,) = series_of([line(0, 1000), line(1, 500, CEILING / 2, device="slow")])
    assert (one.measure, two.measure) == ("tokens/s", "share of ceiling")
    assert math.isclose(two.values()[0], two.values()[1])
