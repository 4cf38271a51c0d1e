"""The nearest submission is one of the same device, and is compared where it did the same."""

from __future__ import annotations

import pytest

from llmb.node.nearest import _sides, nearest
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
    return board.believing([tmp_path]).entries


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


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"config__workload": "gpt2-125m", "workload__name": "gpt2-125m"}, "workload"),
        ({"config__mode": "forward", "workload__mode": "forward"}, "mode"),
        ({"workload__shapes__hidden_size": 64}, "shapes"),
        ({"config__precision__name": "FP16"}, "precision"),
        ({"config__batch_size": 2}, "batch size"),
    ],
)
def test_everything_that_makes_a_speed_another_is_named(tmp_path, change, name):
    ours = board.record(run=9, change=other(**change))
    found = nearest(entries(tmp_path, board.record(run=1)), ours, 50.0)
    assert (found.ratio, found.differs) == (None, (name,))


def test_cores_count_where_they_are_the_device():
    theirs, ours = board.record(run=1), board.record(run=9, change=other(config__device="cpu"))
    many = board.record(run=9, change=other(config__device="cpu", system__cpu__usable_cores=64))
    assert _sides(theirs, many)["cores"] == (8, 64)
    assert _sides(theirs, ours)["cores"] == (8, 8)
    few = board.record(run=9, change=other(system__cpu__usable_cores=64))
    assert _sides(theirs, few)["cores"] == (0, 0)


def test_a_debug_run_is_nobodys_neighbour(tmp_path):
    debug = board.record(run=1, change=lambda data: data.update({"class": "debug"}))
    assert nearest(entries(tmp_path, debug), board.record(run=9), 50.0) is None


def test_of_runs_that_differ_in_batch_size_the_nearest_is_taken(tmp_path):
    sizes = [board.record(run=n, change=other(config__batch_size=n)) for n in (1, 2, 64)]
    ours = board.record(run=9, change=other(config__batch_size=3))
    assert nearest(entries(tmp_path, *sizes), ours, 50.0).batch_size == 2
