"""W1: every way in which a model's weights are not the pristine ones is a fault of its own."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
from pydantic import ValidationError

from llmb.audit.weights import finding as judge
from llmb.config import BF16, FP16, FP32, Precision
from llmb.records.audited import PristineDigest, PristineEvidence
from llmb.records.evidence import ParameterDigest, WeightsEvidence
from llmb.records.finding import Finding, Level, Status
from llmb.reference.recipe import OFFICIAL_OPTIMIZER

NAMES = ("embed", "norm", "head")
SHAPES = {"embed": (50, 8), "norm": (8,), "head": (50, 8)}
ELEMENTS = 50 * 8 * 2 + 8


def processed(name: str, **changes: Any) -> ParameterDigest:
    values = {
        "name": name,
        "shape": SHAPES[name],
        "dtype": "bfloat16",
        "requires_grad": True,
        "sha256": name.ljust(64, "0"),
    }
    return ParameterDigest(**{**values, **changes})


def evidence(
    parameters: Sequence[ParameterDigest] | None = None, **changes: Any
) -> WeightsEvidence:
    values: dict[str, Any] = {
        "pristine": (),
        "processed": tuple(map(processed, NAMES)) if parameters is None else tuple(parameters),
        "stored_elements": ELEMENTS,
        "canonical_elements": ELEMENTS,
    }
    return WeightsEvidence(**{**values, **changes})


def right(**moves: float | None) -> PristineEvidence:
    return PristineEvidence(
        parameters=tuple(
            PristineDigest(
                name=name,
                shape=SHAPES[name],
                dtype="bfloat16",
                sha256=name.ljust(64, "0"),
                largest_move=moves.get(name),
            )
            for name in NAMES
        )
    )


def judged(
    weights: WeightsEvidence,
    precision: Precision = BF16,
    pristine: PristineEvidence | None = None,
    steps: int = 60,
    *,
    trains: bool = True,
) -> Finding:
    path, every = "evidence/weights.json", [OFFICIAL_OPTIMIZER] * steps
    return judge(weights, pristine or right(), precision, every, path, trains=trains)


def fault(weights: WeightsEvidence, **how: Any) -> str:
    finding = judged(weights, **how)
    assert finding.status is Status.FAIL
    return finding.message


def instead(name: str, **changes: Any) -> WeightsEvidence:
    return evidence([processed(n, **(changes if n == name else {})) for n in NAMES])


def test_the_pristine_weights_pass() -> None:
    finding = judged(evidence())
    assert (finding.id, finding.level, finding.status) == ("W1", Level.BLOCK, Status.PASS)
    assert finding.measured == "3 parameters, 808 elements"
    assert finding.evidence == ("evidence/weights.json",)


def test_one_changed_value_fails_by_name() -> None:
    assert fault(instead("norm", sha256="f" * 64)) == "1 parameters have other values: norm"


def test_a_parameter_that_is_gone_fails_by_name() -> None:
    assert "1 parameters are gone: head" in fault(evidence(map(processed, ("embed", "norm"))))


def test_no_parameter_at_all_fails() -> None:
    assert "3 parameters are gone" in fault(evidence([]))


def test_what_was_not_found_fails_by_name() -> None:
    assert "1 parameters cannot be found after post-processing: head" in fault(
        evidence(missing=("head",))
    )


def test_a_parameter_of_the_vendors_own_fails_unless_it_is_declared_as_padding() -> None:
    assert "are not the model's own" in fault(evidence(foreign=("scale",)))


@pytest.mark.parametrize(
    "weights",
    [
        evidence([processed(n, requires_grad=False) for n in NAMES], frozen=NAMES),
        evidence(stored_elements=8),
    ],
    ids=["without gradients", "in buffers"],
)
def test_without_training_weights_need_no_gradients_and_may_be_buffers(
    weights: WeightsEvidence,
) -> None:
    assert judged(weights, trains=False).status is Status.PASS
    assert judged(weights).status is Status.FAIL


def test_more_stored_elements_than_canonical_ones_fail_without_training_too() -> None:
    more = evidence(stored_elements=ELEMENTS + 1)
    assert judged(more, trains=False).status is Status.FAIL


def test_a_frozen_parameter_fails() -> None:
    assert "norm is not trained" in fault(instead("norm", requires_grad=False))
    assert "1 parameters are not trained: fused" in fault(evidence(frozen=("fused",)))


def test_another_shape_fails_even_with_the_same_bytes() -> None:
    assert fault(instead("embed", shape=(8, 50))) == "embed has shape [8, 50], not [50, 8]"


def test_a_name_that_the_model_does_not_have_fails() -> None:
    extra = [*map(processed, NAMES), processed("head").model_copy(update={"name": "x"})]
    assert "x is no parameter of the model" in fault(evidence(extra))


@pytest.mark.parametrize(
    ("precision", "dtype", "allowed"),
    [
        (BF16, "bfloat16", True),
        (BF16, "float32", True),
        (BF16, "float16", True),
        (BF16, "float8_e4m3fn", False),
        (BF16, "int8", False),
        (FP32, "float32", True),
        (FP32, "float64", True),
        (FP32, "bfloat16", False),
        (BF16.model_copy(update={"master_weights": True}), "bfloat16", False),
        (BF16.model_copy(update={"master_weights": True}), "float32", True),
    ],
)
def test_weights_may_be_stored_wider_than_declared_and_not_narrower(
    precision: Precision, dtype: str, allowed: bool
) -> None:
    others = [processed(name, dtype="float64") for name in ("embed", "norm")]
    finding = judged(evidence([*others, processed("head", dtype=dtype)]), precision)
    assert (finding.status is Status.PASS) is allowed
    if not allowed:
        assert f"head is stored as {dtype}, narrower than" in finding.message


def test_more_elements_than_the_model_has_are_padding_that_must_be_declared() -> None:
    assert "816 elements are stored for 808 canonical ones" in fault(evidence(stored_elements=816))
    assert judged(evidence(stored_elements=816, padding=("fused",))).status is Status.PASS


def test_fewer_stored_elements_than_canonical_ones_are_shared_and_fail() -> None:
    assert "408 elements are stored for 808" in fault(evidence(stored_elements=408))


def test_at_most_three_faults_are_told() -> None:
    weights = evidence(
        [processed(n, requires_grad=False, dtype="int8", sha256="f" * 64) for n in NAMES]
    )
    assert fault(weights).count("; ") == 2


# -- moves ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("move", "allowed"), [(0.0, True), (3.16e-5 * 60, True), (0.05, False)])
def test_weights_move_no_further_than_so_many_steps_of_adamw_can_take_them(
    move: float, allowed: bool
) -> None:
    finding = judged(evidence(), BF16, right(head=move), 60)
    assert (finding.status is Status.PASS) is allowed
    if not allowed:
        assert "1 parameters moved further than 60 steps of AdamW can take them: head by 0.05" in (
            finding.message
        )


def test_fewer_steps_take_weights_less_far() -> None:
    move = right(head=0.02)
    assert judged(evidence(), BF16, move, 2000).status is Status.PASS
    assert judged(evidence(), BF16, move, 20).status is Status.FAIL


def test_a_gradient_after_none_moves_a_weight_three_rates_at_once() -> None:
    # (1 - 0.9) / sqrt(1 - 0.999) is 3.16: twice 2000 steps are 0.126, BF16 rounds by 0.016.
    assert judged(evidence(), BF16, right(head=0.11), 2000).status is Status.PASS
    assert judged(evidence(), BF16, right(head=0.15), 2000).status is Status.FAIL


def test_a_gain_may_move_by_a_last_place_of_its_type_in_one_step() -> None:
    assert judged(evidence(), BF16, right(norm=2**-7), 1).status is Status.PASS
    float32 = evidence([processed(n, dtype="float32") for n in NAMES])
    assert judged(float32, FP32, right(norm=2**-7), 1).status is Status.FAIL


def test_in_fp16_squares_of_gradients_underflow_and_there_is_no_bound() -> None:
    half = evidence([processed(n, dtype="float16") for n in NAMES])
    assert judged(half, FP16, right(head=0.1), 12).status is Status.PASS


def test_moves_that_nobody_measured_are_no_fault() -> None:
    assert judged(evidence(), BF16, right(), 0).status is Status.PASS


@pytest.mark.parametrize("move", [math.nan, math.inf])
def test_a_move_that_is_no_number_is_no_evidence(move: float) -> None:
    with pytest.raises(ValidationError, match="finite number"):
        right(norm=move)


@pytest.mark.parametrize(("steps", "beyond"), [(0, 2**-6), (100, 2**-6 + 200 * 3.17227766e-5)])
def test_the_way_is_the_largest_step_and_its_decay_twice_beside_one_rounding(
    steps: int, beyond: float
) -> None:
    # lr is 1e-5: a step of 3.16227766 and a decay of 0.01 of it.
    assert judged(evidence(), BF16, right(norm=beyond * 0.9999), steps).status is Status.PASS
    assert judged(evidence(), BF16, right(norm=beyond * 1.0001), steps).status is Status.FAIL


@pytest.mark.parametrize(
    ("dtype", "rounding"), [("float32", 2**-22), ("float64", 2**-51), ("bfloat16", 2**-6)]
)
def test_without_a_step_a_weight_moves_by_one_rounding_of_its_type(
    dtype: str, rounding: float
) -> None:
    stored = FP32.model_copy(update={"dtype": dtype})
    found = evidence([processed(n, dtype=dtype) for n in NAMES])
    assert judged(found, stored, right(norm=rounding), 0).status is Status.PASS
    assert judged(found, stored, right(norm=rounding * 1.01), 0).status is Status.FAIL


def without_verifier(weights: WeightsEvidence) -> Finding:
    every = [OFFICIAL_OPTIMIZER] * 60
    return judge(weights, None, BF16, every, "evidence/weights.json", trains=True)


def test_without_pristine_weights_nothing_passes_and_what_is_plainly_wrong_still_fails() -> None:
    assert without_verifier(evidence()).status is Status.NOT_OBSERVED
    assert without_verifier(evidence(missing=("head",))).status is Status.FAIL
    assert without_verifier(evidence(stored_elements=816)).status is Status.FAIL


@pytest.mark.parametrize("unknown", ["stored_elements", "canonical_elements"])
def test_elements_that_nobody_counted_are_no_fault(unknown: str) -> None:
    assert judged(evidence(**{unknown: None})).status is Status.PASS


def test_with_declared_padding_other_faults_still_count() -> None:
    padded = instead("norm", sha256="f" * 64).model_copy(update={"padding": ("fused",)})
    assert "other values: norm" in fault(padded)
