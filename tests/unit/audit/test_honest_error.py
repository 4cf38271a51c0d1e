"""Limits of rule L1 follow from what a format rounds, not from the dtype it is stored in."""

from __future__ import annotations

import pytest

from llmb.audit.honest_error import times_of
from llmb.config import BF16, FP32, TF32, Precision


@pytest.mark.parametrize("precision", [FP32, TF32], ids=lambda p: p.name)
def test_formats_that_differ_in_few_last_places_have_room(precision: Precision) -> None:
    assert times_of(precision) == times_of(precision, trains=False) == 12


@pytest.mark.parametrize(
    "precision",
    [
        BF16,
        Precision(name="FP8", bits=8, dtype="bfloat16"),
        Precision(name="FP8", bits=8, dtype="float32"),
        Precision(name="NVFP4", bits=4, dtype="float32"),
        Precision(name="BF16 mixed", bits=16, dtype="bfloat16", master_weights=True),
    ],
    ids=str,
)
def test_a_narrower_format_stored_in_float32_has_the_limits_of_narrower_formats(
    precision: Precision,
) -> None:
    assert (times_of(precision), times_of(precision, trains=False)) == (3, 2.25)
