"""A plan's points, what each asks of a run, and plans that are not the same."""

from __future__ import annotations

from itertools import islice

import pytest

from llmb.config import RunRequest
from llmb.errors import UsageError
from llmb.records.sweep_overview import Point
from llmb.sweep.plan import check_same
from tests.unit.sweep.builders_sweep import asked, plan


def sizes(**changes: object) -> list[int | None]:
    return [p.batch_size for p in islice(plan(**changes).points("BF16"), 30)]


def test_sizes_that_were_named_are_the_points_in_their_order() -> None:
    assert sizes(batch_sizes=(1, 3, 8)) == [1, 3, 8]


def test_auto_is_one_point_whose_run_searches() -> None:
    found = plan(batch_sizes="auto")
    (point,) = found.points("BF16")
    assert found.request(point).batch_size == "auto"
    assert point.folder == "BF16-batch-auto"


def test_doubling_begins_at_one_sequence_for_each_accumulated_part() -> None:
    assert sizes(batch_sizes=None)[:5] == [1, 2, 4, 8, 16]
    assert sizes(batch_sizes=None, request=RunRequest(accumulate=3))[:3] == [3, 6, 12]


def test_doubling_ends_at_the_largest_size_that_was_allowed_and_somewhere_without_one() -> None:
    assert sizes(batch_sizes=None, max_batch_size=9) == [1, 2, 4, 8]
    assert len(sizes(batch_sizes=None)) == 21


def test_a_points_run_differs_from_what_was_asked_in_four_things_only() -> None:
    wanted = RunRequest(timed_steps=20, seed=3, repeats=2)
    made = plan(request=wanted).request(Point("FP32", 4))
    assert (made.plugin, made.device, made.precision, made.batch_size) == ("cpu", "cpu", "FP32", 4)
    undone = dict.fromkeys(("plugin", "device", "precision", "batch_size"))
    assert made.model_copy(update=undone) == wanted


def test_a_vendors_name_of_a_format_makes_no_folder_elsewhere() -> None:
    assert Point("../FP8 E4M3", 1).folder == ".._FP8_E4M3-batch-1"


def test_the_first_value_that_differs_is_named_with_both_sides() -> None:
    check_same(asked(), asked(), "runs/x")
    other = asked(request=RunRequest(timed_steps=30))
    with pytest.raises(UsageError) as caught:
        check_same(other, asked(), "runs/x")
    for words in ("runs/x", "--timed-steps is 30", "begun with not given", "new sweep"):
        assert words in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"batch_sizes": (1, 2)}, "--batch-size is 1,2, .* with 1,2,4"),
        ({"batch_sizes": "auto"}, "--batch-size is 'auto'"),
        ({"batch_sizes": None}, "--batch-size is not given"),
        ({"precisions": ("FP32",)}, "--precision is FP32, .* with not given"),
        ({"request": RunRequest(plugin_options={"threads": "2"})}, "-O is '2'"),
    ],
)
def test_other_points_make_another_plan(changes: dict[str, object], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        check_same(asked(**changes), asked(), "runs/x")
