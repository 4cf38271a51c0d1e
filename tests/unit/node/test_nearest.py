"""The nearest submission is one of the same device, and is compared where it did the same."""

from __future__ import annotations

import pytest

from llmb.node.nearest import nearest
from llmb.report.bundles import gather
from tests.unit import builders_board as board


def other(**changes):
    def change(data):
        for path, value in changes.items():
            *way, last = path.split("__")
            at = data
            for name in way:
                at = at[name]
            at[last] = value

    return change


def of_another_device(data):
    data["system"]["cpu"]["model"] = "Another 9000"
    for device in data["system"]["devices"]:
        device["description"] = "Another 9000"


def entries(tmp_path, *records):
    for number, record in enumerate(records):
        board.put(tmp_path, record, system=f"box{number}")
    return gather([tmp_path]).entries


def test_the_same_run_is_found_and_compared(tmp_path):
    ours = board.record(run=9)
    unlike = board.record(run=1, change=other(config__executor="inductor"))
    found = nearest(entries(tmp_path, unlike, board.record(run=2)), ours, 50.0)
    assert found.system == "box1"
    assert found.ratio == pytest.approx(50.0 / found.tokens_per_second_per_device)
    assert found.differs == ()


def test_one_that_did_something_else_is_shown_with_what_differs_and_not_compared(tmp_path):
    ours = board.record(run=9, change=other(config__executor="inductor"))
    found = nearest(entries(tmp_path, board.record(run=1)), ours, 50.0)
    assert (found.ratio, found.differs) == (None, ("executor",))


def test_other_devices_and_runs_that_are_not_believed_do_not_count(tmp_path):
    ours = board.record(run=9)
    another = board.record(run=1, change=of_another_device)
    invalid = board.record(run=2, verdict="INVALID")
    assert nearest(entries(tmp_path, another, invalid), ours, 50.0) is None
