"""Rule P2 from small programs written by hand, as lazy devices print them."""

from __future__ import annotations

import time

import pytest

from llmb.audit import types
from llmb.audit.types import _MOST_KINDS, _listed
from llmb.config import BF16, FP16, FP32, TF32, Precision
from llmb.records.evidence import OperatorTypes
from llmb.records.finding import Finding, Level, Status

FP8 = Precision(name="FP8", bits=8, dtype="bfloat16")
FP4 = Precision(name="FP4", bits=4, dtype="bfloat16")
PATH = "evidence/repeat-0/program.txt"


def product(left: str, right: str, result: str, kind: str = "dot") -> str:
    operands = f"{left}[8,2]{{1,0}} %a.1, {right}[2,4]{{1,0}} %b.2"
    rest = "lhs_contracting_dims={1}, rhs_contracting_dims={0}"
    return f"  %{kind}.3 = {result}[8,4]{{1,0}} {kind}({operands}), {rest}"


def program(*lines: str) -> str:
    head = "HloModule step, entry_computation_layout={(bf16[8,2]{1,0})->bf16[8,4]{1,0}}"
    first = "  %a.1 = f32[8,2]{1,0} parameter(0), sharding={replicated}"
    last = "  ROOT %add.9 = s8[8,4]{1,0} add(s8[8,4]{1,0} %x.7, s8[8,4]{1,0} %y.8)"
    return "\n".join([head, "", "ENTRY %step.10 {", first, *lines, last, "}", ""])


def judged(precision: Precision, *lines: str) -> Finding:
    return types.judge_program(program(*lines), precision, PATH)


BF16_DOT = product("bf16", "bf16", "bf16")
F32_DOT = product("f32", "f32", "f32")


@pytest.mark.parametrize(
    ("precision", "line", "status"),
    [
        (BF16, BF16_DOT, Status.PASS),
        (BF16, F32_DOT, Status.PASS),
        (BF16, product("bf16", "bf16", "f32"), Status.PASS),
        (FP16, product("f16", "f16", "f32"), Status.PASS),
        (FP32, F32_DOT, Status.PASS),
        (FP32, product("f64", "f64", "f64"), Status.PASS),
        (TF32, F32_DOT, Status.PASS),
        (FP32, BF16_DOT, Status.FLAG),
        (TF32, BF16_DOT, Status.FLAG),
        (FP32, product("bf16", "bf16", "f32"), Status.FLAG),
        (FP32, product("f32", "bf16", "f32"), Status.FLAG),
        (FP32, product("bf16", "f32", "f32"), Status.FLAG),
        (BF16, product("s8", "s8", "s32"), Status.FLAG),
        (BF16, product("u8", "u8", "u32"), Status.FLAG),
        (BF16, product("pred", "pred", "pred"), Status.FLAG),
        (BF16, product("f8e4m3fn", "f8e4m3fn", "bf16"), Status.FLAG),
        (BF16, product("f8e5m2", "f8e4m3fn", "bf16"), Status.FLAG),
        (FP8, product("f8e5m2", "f8e4m3fnuz", "bf16"), Status.PASS),
        (FP8, product("f4e2m1fn", "f8e4m3fn", "bf16"), Status.FLAG),
        (FP4, product("f4e2m1fn", "f4e2m1fn", "bf16"), Status.PASS),
        (FP32, product("bf16", "bf16", "bf16", "convolution"), Status.FLAG),
        (BF16, product("bf16", "bf16", "bf16", "convolution"), Status.PASS),
    ],
)
def test_operands_narrower_than_declared_are_flagged_whatever_the_result_is(
    precision: Precision, line: str, status: Status
) -> None:
    found = judged(precision, line)
    assert (found.id, found.level, found.status) == ("P2", Level.FLAG, status)
    assert found.evidence == (PATH,)
    assert found.honest == f"operands of {precision.bits} bits or more"


def test_one_narrow_product_among_many_is_enough() -> None:
    found = judged(FP32, *[F32_DOT] * 50, BF16_DOT, *[F32_DOT] * 50)
    assert found.status is Status.FLAG
    assert found.message == "products of 16-bit operands in a run declared FP32"


def test_what_was_seen_is_counted_by_type_the_most_frequent_first() -> None:
    mixed = product("bf16", "bf16", "f32")
    found = judged(BF16, mixed, BF16_DOT, BF16_DOT, mixed, BF16_DOT)
    assert found.measured == "3 bf16 x bf16 -> bf16, 2 bf16 x bf16 -> f32"


def test_other_instructions_however_narrow_are_no_products() -> None:
    narrow = "  %c.4 = s8[8,4]{1,0} convert(bf16[8,4]{1,0} %dot.3)"
    fused = "  %f.5 = pred[8]{0} fusion(s4[8]{0} %x, s4[8]{0} %y), kind=kLoop, calls=%dot_of"
    assert judged(BF16, BF16_DOT, narrow, fused).status is Status.PASS


@pytest.mark.parametrize("text", ["", "\n", "no program at all", program()])
def test_a_program_without_a_product_is_no_observation_and_no_pass(text: str) -> None:
    found = types.judge_program(text, BF16, PATH)
    assert (found.status, found.measured) == (Status.NOT_OBSERVED, None)


CUSTOM = '  %g.6 = bf16[8,4]{1,0} custom-call(bf16[8,2]{1,0} %a), custom_call_target="gemm"'


def test_custom_calls_are_counted_since_their_types_do_not_show() -> None:
    found = judged(BF16, BF16_DOT, CUSTOM, CUSTOM)
    assert found.status is Status.PASS
    assert found.measured is not None
    assert found.measured.endswith("; 2 custom calls, whose types do not show")


def test_custom_calls_alone_are_no_observation() -> None:
    found = judged(BF16, CUSTOM)
    assert found.status is Status.NOT_OBSERVED
    assert found.measured == "1 custom calls, whose types do not show"


@pytest.mark.parametrize(
    "line",
    [
        "%d = bf16[] dot(bf16[2]{0} %a, bf16[2]{0} %b), lhs_contracting_dims={0}",
        "ROOT %d = bf16[8,4] dot(bf16[8,2] %a, bf16[2,4] %b)",
        "%d = bf16[8,4]{1,0:T(8,128)(2,1)} dot(bf16[8,2]{1,0:T(8,128)} %a, bf16[2,4]{1,0} %b)",
        "%d = bf16[<=8,4]{1,0} dot(bf16[<=8,2]{1,0} %a, bf16[2,4]{1,0} %b)",
        "%d = bf16[8,4]{1,0} dot(bf16[8,2]{1,0} a.1, bf16[2,4]{1,0} b.2)",
    ],
    ids=["scalar", "no layout", "tiled layout", "bounded size", "no percent sign"],
)
def test_a_product_is_seen_in_every_way_it_is_written(line: str) -> None:
    found = judged(FP32, f"  {line}")
    assert (found.status, found.measured) == (Status.FLAG, "1 bf16 x bf16 -> bf16")


def test_of_very_many_kinds_of_product_the_most_frequent_are_written_out() -> None:
    kinds = [product(f"f{bits}", "bf16", "f32") for bits in range(16, 60)]
    found = judged(BF16, *kinds, BF16_DOT, BF16_DOT)
    assert found.measured is not None
    assert found.measured.startswith("2 bf16 x bf16 -> bf16, 1 f16 x bf16 -> f32, ")
    assert found.measured.endswith(", 25 other kinds")


@pytest.mark.parametrize(
    "unit",
    ["= a[", "= f32[8]{", "= a", "a", "= f32[8] dot(f32[8] ", "= f32[8]{0} dot(", "%", "= f32[8] "],
)
@pytest.mark.parametrize("end", ["", "\n"], ids=["one line", "many lines"])
def test_a_hostile_program_is_judged_in_time_that_grows_with_its_length_only(
    unit: str, end: str
) -> None:
    def seconds(count: int) -> float:
        text = "= " + (unit + end) * count
        began = time.process_time()
        types.judge_program(text, BF16, PATH)
        return time.process_time() - began

    size = 20_000
    small = min(seconds(size) for _ in range(3))
    large = min(seconds(4 * size) for _ in range(2))
    # Of the processor's time; sixteen times as long would be quadratic, small ones do not compare.
    assert large < max(1.0, 8 * small), (small, large)


def test_as_many_kinds_as_are_listed_leave_no_other_kinds() -> None:
    counts = [f"entry{number}" for number in range(_MOST_KINDS)]
    entries = [
        OperatorTypes(operator=name, operands=("a",), results=("b",), kind="product", calls=1)
        for name in counts
    ]
    assert "other kinds" not in _listed(entries)
    assert _listed([*entries, entries[0].model_copy(update={"operator": "one more"})]).endswith(
        ", 1 other kinds"
    )
