"""What a printed figure stands for, and which published rows contradict themselves."""

from __future__ import annotations

import pytest

from llmb.projection.rounding import Range, contradictions, printed
from llmb.workloads import WORKLOADS
from llmb.workloads.published import tables_of


@pytest.mark.parametrize(
    ("text", "low", "high"),
    [
        ("1.18", 1.175, 1.185),
        ("0.0518", 0.05175, 0.05185),
        ("188", 187.5, 188.5),
        ("413000", 412_500, 413_500),
        ("1.10", 1.095, 1.105),
        ("40", 35, 45),
    ],
)
def test_a_printed_figure_is_half_a_unit_of_its_last_digit_around(text, low, high) -> None:
    found = printed(text)
    assert (found.low, found.high) == pytest.approx((low, high))


def test_ranges_multiply_divide_and_overlap() -> None:
    one = Range(2.0, 4.0)
    assert one.times(2) == Range(4.0, 8.0)
    assert one.times(Range(1.0, 3.0)) == Range(2.0, 12.0)
    assert one.under(8) == Range(2.0, 4.0)
    assert one.overlaps(Range(4.0, 9.0))
    assert not one.overlaps(Range(4.1, 9.0))
    assert one.middle == 3.0


def found_of(name: str) -> list[str]:
    ((_, table),) = tables_of(name)
    length = WORKLOADS[name].shape.sequence_length
    return [words for row in table.rows for words in contradictions(row, table, length)]


def test_berts_rows_disagree_with_their_own_rates() -> None:
    short, long = found_of("nemo-bert-base"), found_of("nemo-bert-base-2048")
    assert "Samples/s 1,167 and Iter/s 1.18 disagree" in short[0]
    assert "1,208.3, 3.5% apart" in short[0]
    assert "Node hours per 100k steps 188 and Samples/s" in short[1], "188 is of 1.18 it/s"
    assert [words.split(" disagree")[0] for words in long] == [
        "Samples/s 202 and Iter/s 0.19",
        "Node hours per 100k steps 1,151 and Samples/s 202",
    ], "1151 is within the rounding of 0.19 it/s"


def test_tokens_are_samples_times_length_within_rounding_in_all_of_berts_rows() -> None:
    names = ("nemo-bert-base", "nemo-bert-base-2048", "nemo-bert-large")
    assert not [words for name in names for words in found_of(name) if "Tokens/s" in words]


def test_nanotrons_rows_agree_with_themselves() -> None:
    assert found_of("nanotron-llama2-7b") == []
