"""Rule P2 from a worker's count of operators by type."""

from __future__ import annotations

from typing import Literal

import pytest
from pydantic import ValidationError

from llmb.audit import types
from llmb.config import BF16, FP16, FP32, TF32, Precision
from llmb.records.evidence import OperatorTypes, TypesEvidence, bits_of_numbers
from llmb.records.finding import Finding, Level, Status

FP8 = Precision(name="FP8", bits=8, dtype="bfloat16")
AUTOCAST = BF16.model_copy(update={"master_weights": True})
PATH = "evidence/repeat-0/types.json"
Kind = Literal["product", "cast", "foreign"]


def entry(
    operator: str, *operands: str, kind: Kind = "product", to: str = "bfloat16", calls: int = 1
) -> OperatorTypes:
    return OperatorTypes(
        kind=kind, operator=operator, operands=operands, results=(to,), calls=calls
    )


def mm(*operands: str, calls: int = 45) -> OperatorTypes:
    return entry("aten::mm", *operands, to=operands[0], calls=calls)


def cast(to: str) -> OperatorTypes:
    return entry("aten::to", "bfloat16", kind="cast", to=to)


def foreign(*operands: str, to: str = "bfloat16") -> OperatorTypes:
    return entry("vendor::fused", *operands, kind="foreign", to=to)


def evidence(
    *executed: OperatorTypes,
    compiled: tuple[OperatorTypes, ...] = (),
    frames: int = 0,
    unread: int = 0,
    obstacle: str | None = None,
) -> TypesEvidence:
    return TypesEvidence(
        executed=executed,
        compiled=compiled,
        compiled_frames=frames,
        unread_frames=unread,
        obstacle=obstacle,
    )


def judged(precision: Precision, *executed: OperatorTypes) -> Finding:
    return types.judge_census(evidence(*executed), precision, PATH)


ATTENTION = entry("aten::_scaled_dot_product_flash_attention_backward", "bfloat16", "float32")


@pytest.mark.parametrize(
    ("precision", "entries"),
    [
        (BF16, [mm("bfloat16"), ATTENTION]),
        (BF16, [mm("float32")]),
        (BF16, [mm("bfloat16"), mm("float32", calls=1)]),
        (AUTOCAST, [mm("bfloat16"), ATTENTION]),
        (FP16, [mm("float16")]),
        (FP32, [mm("float32")]),
        (FP32, [mm("float64")]),
        (TF32, [mm("float32")]),
        (FP8, [entry("aten::_scaled_mm", "float8_e5m2", "float8_e4m3fn", "float32")]),
        (FP8, [mm("bfloat16"), cast("float8_e4m3fn"), cast("int8")]),
        (FP8, [mm("bfloat16"), foreign("float8_e4m3fn", to="float8_e4m3fn")]),
        (BF16, [mm("bfloat16"), entry("aten::_grouped_mm", "bfloat16", "int32")]),
        (BF16, [mm("bfloat16"), entry("aten::flex_attention", "bfloat16", "bool", "int64")]),
        (BF16, [mm("bfloat16"), foreign("bfloat16", "uint8", to="uint8")]),
        (FP32, [mm("float32"), foreign("bfloat16")]),
    ],
)
def test_operands_as_wide_as_declared_or_wider_pass(
    precision: Precision, entries: list[OperatorTypes]
) -> None:
    found = judged(precision, *entries)
    assert (found.id, found.level, found.status) == ("P2", Level.FLAG, Status.PASS)
    assert found.evidence == (PATH,)
    assert found.honest == f"operands of {precision.bits} bits or more"


@pytest.mark.parametrize(
    ("precision", "suspect"),
    [
        (FP32, mm("bfloat16", calls=1)),
        (FP32, mm("float16", calls=1)),
        (FP32, entry("aten::mm", "float32", "bfloat16")),
        (TF32, mm("bfloat16", calls=1)),
        (FP32, cast("float8_e4m3fn")),
        (BF16, entry("aten::_scaled_mm", "float8_e4m3fn", "float32")),
        (BF16, entry("aten::_int_mm", "int8")),
        (BF16, entry("aten::_weight_int8pack_mm", "bfloat16", "int8")),
        (BF16, entry("quantized::linear", "quint8")),
        (BF16, entry("aten::mm", "uint8")),
        (BF16, cast("float8_e5m2")),
        (BF16, cast("int8")),
        (BF16, cast("uint8")),
        (FP16, cast("float4_e2m1fn_x2")),
        (BF16, foreign("float8_e4m3fn")),
        (BF16, foreign("bfloat16", to="float8_e4m3fn")),
        (BF16, foreign("int8")),
        (FP8, entry("aten::_scaled_mm", "float4_e2m1fn_x2", "float8_e8m0fnu")),
        (FP8, cast("float4_e2m1fn_x2")),
    ],
)
@pytest.mark.parametrize("where", ["executed", "compiled"])
def test_one_narrower_operand_is_flagged_wherever_it_is(
    precision: Precision, suspect: OperatorTypes, where: str
) -> None:
    usual = mm(precision.dtype, calls=99)
    seen = {"executed": (usual,), "compiled": (usual,)}
    seen[where] += (suspect,)
    found = types.judge_census(
        evidence(*seen["executed"], compiled=seen["compiled"]), precision, PATH
    )
    assert found.status is Status.FLAG
    operator = suspect.operator.removeprefix("aten::")
    assert found.message.startswith(f"in a run declared {precision.name}: 1 {operator}(")


def test_a_suspect_is_flagged_though_no_product_was_seen() -> None:
    assert judged(BF16, cast("int8")).status is Status.FLAG


@pytest.mark.parametrize("entries", [[], [foreign("bfloat16")]])
def test_without_a_product_nothing_was_observed(entries: list[OperatorTypes]) -> None:
    found = judged(BF16, *entries)
    assert found.status is Status.NOT_OBSERVED
    assert found.message.startswith("no matrix product was seen")


def test_an_unseen_step_of_an_eager_run_is_not_observed_and_the_reason_told() -> None:
    found = types.judge_census(evidence(obstacle="the observer is in use"), BF16, PATH)
    assert (found.status, found.measured) == (Status.NOT_OBSERVED, None)
    assert "not known (the observer is in use)" in found.message


def test_compiled_programs_alone_are_an_observation_and_what_is_missing_told() -> None:
    seen = evidence(compiled=(mm("bfloat16"),), frames=1, obstacle="the observer is in use")
    found = types.judge_census(seen, BF16, PATH)
    assert found.status is Status.PASS
    assert "what ran outside compiled programs is not known" in found.message


def test_compiled_frames_that_show_no_program_are_told() -> None:
    found = types.judge_census(evidence(mm("bfloat16"), frames=3, unread=2), BF16, PATH)
    assert found.status is Status.PASS
    assert "2 of 3 compiled frames do not show their program" in found.message


def test_operators_of_other_libraries_are_named() -> None:
    found = judged(BF16, mm("bfloat16"), foreign("bfloat16", "float32"))
    assert found.status is Status.PASS
    assert "1 vendor::fused(bfloat16, float32) -> bfloat16" in found.message


@pytest.mark.parametrize(
    ("precision", "operand", "told"),
    [
        (BF16, "float16", True),
        (FP16, "bfloat16", True),
        (BF16, "bfloat16", False),
        (BF16, "float32", False),
        (FP8, "float8_e4m3fn", False),
        (TF32, "float32", False),
    ],
)
def test_another_format_of_the_same_width_is_told_and_not_flagged(
    precision: Precision, operand: str, told: bool
) -> None:
    found = judged(precision, mm(operand))
    assert found.status is Status.PASS
    assert ("as wide as" in found.message) is told


def test_what_was_seen_is_counted_where_it_was_seen_the_most_frequent_first() -> None:
    seen = evidence(ATTENTION, mm("bfloat16"), compiled=(mm("bfloat16", calls=9),), frames=1)
    assert types.judge_census(seen, BF16, PATH).measured == (
        "one step ran 45 mm(bfloat16), "
        "1 _scaled_dot_product_flash_attention_backward(bfloat16, float32); "
        "compiled programs hold 9 mm(bfloat16)"
    )


def test_of_very_many_kinds_the_most_frequent_are_written_out() -> None:
    kinds = [entry(f"aten::mm{n}", "float8_e4m3fn") for n in range(100)]
    found = judged(BF16, *kinds, mm("bfloat16"))
    assert found.measured is not None
    assert found.measured.startswith("one step ran 45 mm(bfloat16), 1 mm0(")
    assert found.measured.endswith(", 81 other kinds")
    assert "80 other kinds" in found.message


@pytest.mark.parametrize(
    ("dtype", "bits"),
    [
        ("float64", 64),
        ("float32", 32),
        ("bfloat16", 16),
        ("float16", 16),
        ("float8_e4m3fnuz", 8),
        ("float4_e2m1fn_x2", 4),
        ("int8", 8),
        ("uint8", 8),
        ("quint4x2", 4),
        ("bits8", 8),
        ("int32", None),
        ("uint64", None),
        ("bool", None),
        ("complex64", None),
        ("new_type", None),
    ],
)
def test_only_what_a_product_may_multiply_has_bits(dtype: str, bits: int | None) -> None:
    assert bits_of_numbers(dtype) == bits


@pytest.mark.parametrize(
    "change",
    [
        {"operator": "aten::mm\x1b[31m"},
        {"operator": ""},
        {"operator": "x" * 101},
        {"operands": ("bfloat16 ",)},
        {"operands": ("x" * 41,)},
        {"operands": ("bfloat16",) * 65},
        {"calls": 0},
        {"kind": "other"},
    ],
)
def test_evidence_that_no_worker_writes_is_refused(change: dict[str, object]) -> None:
    honest = mm("bfloat16").model_dump()
    assert OperatorTypes.model_validate(honest) == mm("bfloat16")
    with pytest.raises(ValidationError):
        OperatorTypes.model_validate(honest | change)
