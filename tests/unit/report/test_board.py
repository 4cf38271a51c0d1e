"""Who is ranked, against whom, and what stands apart."""

from __future__ import annotations

from dataclasses import replace

import pytest

from llmb.records.bundle import read_bundle
from llmb.records.finding import RULES_VERSION, Verdict
from llmb.records.recomputed_list import Recomputation
from llmb.report import columns, page, ranking
from llmb.report.board import BoardRepetition, board, repeated_by_same
from llmb.submission.bundles import Shelf
from tests.unit.builders_board import believing, judged, put, record


@pytest.fixture
def ranked(tmp_path):
    def make(*records):
        for one in records:
            put(tmp_path, one)
        return board(believing([tmp_path]))

    return make


def places(found):
    return {
        group.title: [(row.rank, row.entry.record.run_id[-1]) for row in rows]
        for group, rows in found.groups
    }


def test_the_fastest_is_first(ranked):
    found = ranked(record(1), record(2, faster=2.0), record(3, faster=0.5))
    assert places(found) == {"llama-1.4b train BF16": [(1, "2"), (2, "1"), (3, "3")]}
    assert found.apart == found.refused == ()


def test_equal_figures_have_an_equal_rank_and_the_next_one_counts_them(ranked):
    found = ranked(record(1), record(2), record(3, faster=0.5))
    ((_, rows),) = found.groups
    assert [row.rank for row in rows] == [1, 1, 3]


def test_overlapping_intervals_are_marked_at_the_slower_row(ranked):
    found = ranked(record(1), record(2, faster=0.99), record(3, faster=0.9))
    ((_, rows),) = found.groups
    assert [row.overlaps for row in rows] == [False, True, False]


def test_precisions_are_ranked_apart_and_by_what_was_measured(ranked):
    found = ranked(
        record(1, effective="FP8", faster=3.0), record(2), record(3, effective=None, faster=2.0)
    )
    assert places(found) == {
        "llama-1.4b train BF16": [(1, "2")],
        "llama-1.4b train BF16 (declared, not observed)": [(1, "3")],
        "llama-1.4b train FP8": [(1, "1")],
    }


def other_workload(data):
    data["config"]["workload"] = data["workload"]["name"] = "gpt2-125m"


def test_workloads_are_ranked_apart(ranked):
    found = ranked(record(1), record(2, change=other_workload, faster=9.0))
    assert list(places(found)) == ["llama-1.4b train BF16", "gpt2-125m train BF16"]


def debug(data):
    data["class"], data["waivers"] = "debug", ["--timed-steps 3"]


def own(data):
    data["config"]["definition"] = {"family": "llama"}
    data["config"]["workload"] = data["workload"]["name"] = "mine"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (debug, "debug: --timed-steps 3"),
        (lambda data: judged(data, "INVALID"), "INVALID: W1 failed"),
        (own, "a model of the submitter's own"),
        (
            lambda data: data.update(rules_version="1"),
            f"rules 1: today's are {RULES_VERSION}",
        ),
    ],
)
def test_what_cannot_be_compared_stands_apart_however_fast(ranked, change, words):
    found = ranked(record(1), record(2, faster=100.0, change=change))
    assert places(found) == {"llama-1.4b train BF16": [(1, "1")]}
    (row,) = found.apart
    assert (row.rank, row.unranked) == (None, words)


def test_flagged_and_unverified_runs_are_ranked_and_keep_their_verdict(ranked):
    found = ranked(record(1, verdict="FLAGGED"), record(2, verdict="UNVERIFIED", faster=2.0))
    ((_, rows),) = found.groups
    assert [row.verdict for row in rows] == [Verdict.UNVERIFIED, Verdict.FLAGGED]


def waived(data):
    data["waivers"] = ["no seed"]


def test_waivers_are_marks_of_the_row(ranked):
    ((_, rows),) = ranked(record(change=waived)).groups
    assert rows[0].marks == ("waived: no seed",)


def test_figures_of_a_row_are_those_of_the_record(ranked):
    ((_, (row,)),) = ranked(record(devices=4)).groups
    result = row.entry.record.result
    assert row.tokens_per_second_per_device * 4 == pytest.approx(result.tokens_per_second)
    assert (row.devices, row.device, row.plugin) == (4, "Fast [1]", "fast")
    assert (row.tokens_per_joule, row.mfu_source) == (result.energy.tokens_per_joule, "datasheet")
    assert row.ci95 == result.ci95


def no_energy(data):
    data["result"]["energy"] = data["result"]["mfu"] = data["result"]["fraction_of_ceiling"] = None


def test_what_was_not_measured_is_none_and_never_zero(ranked):
    ((_, (row,)),) = ranked(record(change=no_energy)).groups
    assert (row.tokens_per_joule, row.mfu, row.fraction_of_ceiling) == (None, None, None)


@pytest.mark.parametrize(
    ("own", "lacking", "verdict"),
    [
        ("CONSISTENT", (), Verdict.REPRODUCED),
        ("CONSISTENT", ("both are signed with the same key",), Verdict.CONSISTENT),
        ("FLAGGED", (), Verdict.FLAGGED),
        ("UNVERIFIED", (), Verdict.UNVERIFIED),
    ],
)
def test_a_repetition_that_counts_makes_a_consistent_run_reproduced(
    tmp_path, own, lacking, verdict
):
    put(tmp_path, record(verdict=own))
    shelf = believing([tmp_path])
    repeated = {shelf.entries[0].bundle_id: [BoardRepetition("b" * 64, 1.5, lacking)]}
    ((_, (row,)),) = board(shelf, repeated).groups
    assert row.verdict is verdict


@pytest.mark.parametrize("by_same", [True, False])
def test_a_repetition_by_the_same_organisation_is_told_and_changes_no_level(tmp_path, by_same):
    put(tmp_path, record())
    shelf = believing([tmp_path])
    again = BoardRepetition("b" * 64, -0.44, ("both are signed with the same key",), by_same)
    found = board(shelf, {shelf.entries[0].bundle_id: [again]})
    (row,) = found.rows
    assert (row.verdict, row.trust) == (Verdict.CONSISTENT, "self-reported")
    told = "repeated by the same organisation: bundle bbbbbbbb (-0.4 %)"
    assert repeated_by_same(row) == (told if by_same else None)
    assert columns.row_data(row)["repeated_by_same_organisation"] == ["b" * 64] * by_same
    for text in (ranking.markdown(found), page.page(found, {})):
        assert (told in text) is by_same


def test_published_rows_are_references_and_never_ranked(ranked):
    found = ranked(record())
    assert {row.document for row in found.references} >= {"Nanotron, LLama2 7B", "NeMo BERT"}
    assert all(row.source and row.figures for row in found.references)
    assert {row.submitter for row in found.rows} == {"acme"}


def test_a_group_stands_where_workloads_modes_and_formats_are_usually_listed(ranked):
    def forward(data):
        data["workload"]["mode"] = data["config"]["mode"] = "forward"

    found = ranked(
        record(1, effective="FP8"),
        record(2, effective="BF16"),
        record(3, effective="FP32"),
        record(4, effective="odd"),
        record(5, effective="FP8", change=other_workload),
        record(6, effective="FP32", change=forward),
    )
    assert list(places(found)) == [
        "llama-1.4b train FP32",
        "llama-1.4b train BF16",
        "llama-1.4b train FP8",
        "llama-1.4b train odd",
        "llama-1.4b forward FP32",
        "gpt2-125m train FP8",
    ]


@pytest.mark.parametrize(
    ("section", "name", "value", "mark"),
    [
        ("config", "mixed_precision", True, "autocast over FP32 weights"),
        ("config", "dynamic", True, "sequences of many lengths"),
        ("workload", "tokens", "data 0123", "tokens of data 0123"),
    ],
)
def test_what_a_figure_was_computed_with_is_a_mark(ranked, section, name, value, mark):
    ((_, (row,)),) = ranked(record(change=lambda data: data[section].update({name: value}))).groups
    assert row.marks == (mark,)


def test_a_debug_runs_waivers_are_its_reason_and_not_also_its_mark(ranked):
    (row,) = ranked(record(change=debug)).apart
    assert row.marks == ()


def without_interval(data):
    data["result"]["ci95"] = None


def test_without_intervals_only_equal_figures_overlap(ranked):
    found = ranked(
        record(1, change=without_interval),
        record(2, faster=0.9999, change=without_interval),
        record(3, faster=0.9999, change=without_interval),
    )
    ((_, rows),) = found.groups
    assert [row.overlaps for row in rows] == [False, False, True]


def test_every_broken_rule_of_an_invalid_run_is_named_once(ranked):
    def broken(data):
        judged(data, "INVALID")
        (failed,) = (f for f in data["audit"]["findings"] if f["status"] == "fail")
        data["audit"]["findings"] += [failed, {**failed, "id": "O1"}]

    (row,) = ranked(record(change=broken)).apart
    assert row.unranked == "INVALID: W1, O1 failed"


def test_what_somebody_else_has_computed_again_stands_before_what_is_faster(tmp_path):
    there = {n: put(tmp_path, record(n, faster=n)) for n in (1, 2, 3)}
    shelf = believing([tmp_path])
    ids = {read_bundle(place).bundle_id: n for n, place in there.items()}
    how = Recomputation(llmb_version="0.2.0", date="2026-11-27", steps=3, of_steps=50)
    again = {bundle_id: how for bundle_id, n in ids.items() if n != 3}
    ((_, rows),) = board(shelf, recomputed=again).groups
    shown = [(row.rank, ids[row.bundle_id], row.trust) for row in rows]
    assert shown == [(1, 2, "recomputed"), (2, 1, "recomputed"), (3, 3, "self-reported")]
    assert rows[0].trusted_because == "3 of 50 steps, 2026-11-27, llmb 0.2.0"
    assert rows[2].trusted_because == "nobody else has computed it again"
    ((_, plain),) = board(shelf).groups
    assert [ids[row.bundle_id] for row in plain] == [3, 2, 1]


@pytest.mark.parametrize(
    ("share", "steps", "level"),
    [
        (0.95, 53, "time-stamped"),
        (0.95, 4, "recomputed"),  # nobody knows of the other steps
        (0.85, 53, "recomputed"),
        (None, 53, "recomputed"),
        (0.95, None, "self-reported"),  # times of steps that perhaps nobody computed
    ],
)
def test_a_row_is_time_stamped_where_all_steps_were_made_again_and_the_bound_is_near(
    tmp_path, share, steps, level
):
    put(tmp_path, record())
    (entry,) = believing([tmp_path]).entries
    bound = share and share * entry.record.result.tokens_per_second
    shelf = Shelf((replace(entry, by_foreign_clock=bound),), ())
    again = {}
    if steps is not None:
        made = Recomputation(llmb_version="0.2.0", date="2026-11-27", steps=steps, of_steps=53)
        again = {entry.bundle_id: made}
    (row,) = board(shelf, recomputed=again).rows
    assert row.trust == level
    assert any("by a foreign clock" in mark for mark in row.marks) == (bound is not None)


def test_without_any_step_that_can_be_made_again_a_row_is_not_time_stamped(tmp_path):
    put(tmp_path, record())
    (entry,) = believing([tmp_path]).entries
    shelf = Shelf((replace(entry, by_foreign_clock=entry.record.result.tokens_per_second),), ())
    none = Recomputation(llmb_version="0.2.0", date="2026-11-27", steps=0, of_steps=0)
    (row,) = board(shelf, recomputed={entry.bundle_id: none}).rows
    assert row.trust == "recomputed"
