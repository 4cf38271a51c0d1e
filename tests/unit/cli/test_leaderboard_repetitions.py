"""Who repeated whom is told on the leaderboard, and only of bundles that verify."""

from __future__ import annotations

import pytest

from llmb.cli.leaderboard import repetitions
from llmb.records.bundle import read_bundle
from llmb.report.board import board
from llmb.submission.bundles import gather
from tests import builders
from tests.unit.builders_board import believing, put
from tests.unit.builders_reproduction import consistent, linked


def pair(root, change=lambda data: None):
    """Write an honest run and an honest repetition of it; return the id of the first."""
    original = builders.make_record(repeats=1)
    there = read_bundle(put(root, original, "acme")).bundle_id
    again = linked(builders.make_record(repeats=1, run_id="f" * 32), original, there)
    put(root, builders.edited(again, change), "beta")
    return there


def test_a_repetition_is_listed_with_what_it_lacks_and_the_verdict_stays(tmp_path):
    there = pair(tmp_path)
    shelf, found = repetitions(gather([tmp_path]))
    assert len(shelf.entries) == 2
    (one,) = found[there]
    assert "the original is UNVERIFIED, not CONSISTENT" in one.lacking
    assert "the original has no valid signature by a listed key" in one.lacking
    verdicts = {row.submitter: row.verdict.value for row in board(shelf, found).rows}
    assert verdicts == {"acme": "UNVERIFIED", "beta": "UNVERIFIED"}


def test_a_link_that_misquotes_the_original_is_refused(tmp_path):
    def change(data):
        rate = data["reproduction_of"]["tokens_per_second"] * 2
        data["reproduction_of"] |= {"tokens_per_second": rate, "ci95": None}
        difference = (data["result"]["tokens_per_second"] / rate - 1) * 100
        data["reproduction_of"]["difference_percent"] = difference

    there = pair(tmp_path, change)
    shelf, found = repetitions(gather([tmp_path]))
    assert [entry.submitter for entry in shelf.entries] == ["acme"]
    assert "it says that it repeats" in shelf.refused[0].reason
    assert found[there] == []


def test_a_repetition_that_does_not_verify_is_refused_and_counts_for_nothing(tmp_path):
    def change(data):
        data["result"]["mfu"]["value"] *= 2

    there = pair(tmp_path, change)
    shelf, found = repetitions(gather([tmp_path]))
    assert [one.path for one in shelf.refused] == ["beta/box/work/ffffffff"]
    assert shelf.refused[0].reason.startswith("recomputation: ")
    assert str(tmp_path) not in shelf.refused[0].reason
    assert found == {there: []}


def test_a_link_to_a_bundle_that_is_not_here_changes_nothing(tmp_path):
    original = builders.make_record(repeats=1)
    again = linked(builders.make_record(repeats=1, run_id="f" * 32), original)
    put(tmp_path, again, "beta")
    shelf, found = repetitions(gather([tmp_path]))
    assert len(shelf.entries) == 1
    assert found == {shelf.entries[0].bundle_id: []}


@pytest.mark.parametrize(
    ("submitter", "rate", "by_same"),
    [("acme", 1040.0, True), ("beta", 1040.0, False), ("acme", 1060.0, False)],
)
def test_a_repetition_that_lacks_a_second_party_alone_is_the_same_organisations(
    tmp_path, submitter, rate, by_same
):
    original = consistent()
    there = read_bundle(put(tmp_path, original, "acme")).bundle_id
    put(tmp_path, linked(consistent("1" * 32, rate), original, there), submitter)
    _, found = repetitions(believing([tmp_path]))
    (one,) = found[there]
    assert one.by_same is by_same
    assert one.lacking
