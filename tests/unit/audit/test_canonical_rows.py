"""Elements of several parameters in one stored parameter are judged apart."""

from __future__ import annotations

import pytest

from llmb.audit.canonical_rows import CanonicalRows, is_apart
from llmb.audit.compared_rows import ComparedRows
from llmb.config import BF16, FP32, Precision
from llmb.formats import Element, Format
from llmb.records.audited import MOMENTS, LedgerEvidence, LedgerSegment
from llmb.records.evidence import ParameterDigest, WeightsEvidence

INTEGERS = Format(Element(0, 7, 127 / 128, scale="float32"))
Q, K, OTHER = "layers.0.q.weight", "layers.0.k.weight", "layers.1.q.weight"
WEIGHTS = WeightsEvidence(
    pristine=tuple(
        ParameterDigest(
            name=name, shape=(100,), dtype="float32", requires_grad=True, sha256="a" * 64
        )
        for name in (Q, K, OTHER, "w")
    ),
    processed=(),
)
#: Steps of three elements of ``qk``, and two of ``w``.
STORED = LedgerEvidence(
    segments=(LedgerSegment(name="qk", elements=3), LedgerSegment(name="w", elements=2)),
    moments=MOMENTS,
)
WHERE = [0, 1, 100, 300, 301, 101, -1, 2, 302, 303]
#: Gradients of ``qk`` and ``w``, then every other element of a moment.
ROWS = [1.0, 2.0, 3.0, 4.0, 5.0, 10.0, 30.0, 40.0, 6.0, 7.0, 8.0, 9.0, 10.0, 60.0, 80.0, 90.0]


def form(where: list[int] | None = None, *, apart: bool = True) -> CanonicalRows:
    return CanonicalRows.of(STORED, where or WHERE, WEIGHTS, apart=apart)


def test_each_parameter_of_the_model_has_a_part() -> None:
    rows = form().rows(ROWS).of_gradients()
    assert rows.names == [K, Q, "w"]
    # The padding, 7, belongs to the first part.
    assert rows.parts(0) == {K: [0, 0, 3], Q: [1, 2, 0], "w": [4, 5]}
    assert rows.parts(1) == {K: [6, 7, 0], Q: [0, 0, 8], "w": [9, 10]}


def test_moments_have_parts_of_every_other_element() -> None:
    rows = form().rows(ROWS)
    assert rows.of_moment("exp_avg").parts(0) == {K: [0, 30], Q: [10, 0], "w": [40]}
    assert rows.of_moment("exp_avg_sq").parts(0) == {K: [60, 0], Q: [0, 80], "w": [90]}


def test_rows_of_chosen_steps_have_the_parts_of_these_steps() -> None:
    rows = form().rows([6.0, 7.0, 8.0, 9.0, 10.0], [1], moments=False)
    assert rows.parts(0)[Q] == [0, 0, 8]
    with pytest.raises(ValueError, match="places of 2 steps"):
        form().rows([6.0, 7.0, 8.0, 9.0, 10.0], [2], moments=False)


def test_parts_have_distances_of_their_own() -> None:
    """The gradient of one parameter may be missing beside a far longer gradient."""
    shown = [0.0, 0.0, 1e3, 1.0, 1.0, 1e3, 1e3, 0.0, 1.0, 1.0]
    right = [1.0, 1.0, 1e3, 1.0, 1.0, 1e3, 1e3, 1.0, 1.0, 1.0]
    for apart, error in ((True, 1.0), (False, None)):
        made = form(apart=apart)
        pair = [made.rows(one, moments=False) for one in (shown, right)]
        gaps = ComparedRows.of(*pair).gaps
        worst = max(one.error for own in gaps.values() for one in own)
        assert worst == (error if apart else pytest.approx(1e-3, rel=0.5))


def test_layers_of_one_kind_stay_together() -> None:
    places = [0, 200, 201, 300, 301]
    assert form(places).names == ["qk", "w"]
    assert form([0, 200, 100, 300, 301]).names == [K, "layers.*.q.weight", "w"]


def test_a_parameter_in_two_places_has_two_names() -> None:
    assert form([0, 1, 100, 101, 102]).names == [K, Q, f"{K}'"]


def test_plainly_stored_parameters_are_called_as_the_model_calls_them() -> None:
    plain = CanonicalRows.of(STORED, None, WEIGHTS, apart=True)
    assert plain.ledger is STORED
    assert plain.rows(ROWS).every() == ROWS
    assert form([0, 1, 2, 300, 301]).names == [Q, "w"]


@pytest.mark.parametrize(
    ("precision", "rough", "apart"),
    [
        (BF16, False, True),
        (FP32, False, True),
        (BF16, True, False),
        (Precision(name="FP8", dtype="bfloat16", bits=8), False, True),
        (Precision(name="INT8", dtype="bfloat16", bits=8, format=INTEGERS), False, False),
        (Precision(name="MXFP4", dtype="bfloat16", bits=4), False, False),
        (Precision(name="ACME", dtype="bfloat16", bits=8), False, False),
    ],
)
def test_parameters_are_judged_apart_unless_one_scale_may_hide_the_small_ones(
    precision: Precision, *, rough: bool, apart: bool
) -> None:
    assert is_apart(precision, rough=rough) is apart


def test_what_is_not_judged_apart_is_judged_as_stored() -> None:
    assert form(apart=False).rows(ROWS).every() == ROWS
