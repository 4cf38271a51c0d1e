"""P3: a note for the reader, which names what bears on precision and never changes a verdict."""

from __future__ import annotations

from typing import Any

import pytest

from llmb.audit import rules
from llmb.audit.settings import finding as judge
from llmb.records.evidence import LitmusEvidence, SettingsEvidence
from llmb.records.finding import Finding, Level, Status

ORDINARY = {"torch.float32_matmul_precision": "highest", "torch.num_threads": "4"}


def litmus(**changes: Any) -> LitmusEvidence:
    values: dict[str, Any] = {
        "dtype": "bfloat16",
        "length": 3200,
        "ones": 3200.0,
        "big": 512.0,
        "kept": 1.0,
        "operand_bits": 8,
    }
    return LitmusEvidence(**{**values, **changes})


def finding(
    after: dict[str, str] | None = None, sums: LitmusEvidence | None = None, **changes: Any
) -> Finding:
    settings = SettingsEvidence(before=ORDINARY, after={**ORDINARY, **(after or {})})
    return judge(settings, sums or litmus(**changes), "settings.json", "litmus.json")


def test_an_ordinary_run_has_nothing_to_remark() -> None:
    found = finding()
    assert (found.id, found.level, found.status) == ("P3", Level.NOTE, Status.PASS)
    assert found.measured == "bfloat16: operands of 8 bits, sums of 10 bits or more"


def test_a_precision_setting_that_was_changed_is_named_with_both_values() -> None:
    found = finding({"torch.float32_matmul_precision": "high"})
    assert found.status is Status.NOTE
    assert found.message == "torch.float32_matmul_precision highest -> high"


def test_a_setting_that_has_nothing_to_do_with_precision_is_not_named() -> None:
    assert finding({"torch.num_threads": "1"}).status is Status.PASS


@pytest.mark.parametrize(
    "name", ["NVIDIA_TF32_OVERRIDE", "XLA_DOWNCAST_BF16", "ONEDNN_DEFAULT_FPMATH_MODE"]
)
def test_a_variable_that_bears_on_precision_is_named_whoever_set_it(name: str) -> None:
    settings = {**ORDINARY, f"environment.{name}": "1", "environment.OMP_NUM_THREADS": "4"}
    found = judge(SettingsEvidence(before=settings, after=settings), litmus(), "settings.json")
    assert found.message == f"{name}=1"


def test_sums_that_lose_ones_are_named() -> None:
    assert "3200 ones add up to 256" in finding(ones=256.0).message


def test_sums_as_narrow_as_their_operands_are_named() -> None:
    found = finding(kept=0.0)
    assert "512 + 1 - 512 is 0: sums keep under 10 bits" in found.message
    assert found.measured == "bfloat16: operands of 8 bits, sums of under 10 bits"


def test_operands_that_lose_bits_are_named() -> None:
    found = finding(dtype="float32", big=4096.0, operand_bits=11)
    assert "products keep 11 significant bits of a float32 operand" in found.message


def test_without_a_litmus_it_says_so() -> None:
    settings = SettingsEvidence(before=ORDINARY, after=ORDINARY)
    found = judge(settings, None, "settings.json")
    assert (found.status, found.measured) == (Status.NOTE, None)
    assert "was not measured" in found.message


def test_a_long_list_is_cut() -> None:
    found = finding({f"torch.backends.p{n}.fp32_precision": "tf32" for n in range(9)})
    assert found.message.endswith("; 3 more")


def test_it_never_changes_the_verdict() -> None:
    worst = finding({"torch.default_dtype": "torch.float16"}, ones=1.0, kept=0.0, operand_bits=2)
    passed = worst.model_copy(update={"id": "O1", "level": Level.BLOCK, "status": Status.PASS})
    assert rules.verdict([passed, worst]) is rules.verdict([passed])


@pytest.mark.parametrize(
    "name",
    [
        "torch.float32_matmul_precision",
        "torch.backends.cuda.matmul.allow_tf32",
        "torch.backends.cuda.matmul.allow_bf16_reduced_math",
        "torch.backends.cuda.matmul.allow_fp16_accumulation",
        "torch.default_dtype",
    ],
)
def test_each_kind_of_setting_that_bears_on_precision_is_named(name: str) -> None:
    assert finding({name: "other"}).message.startswith(f"{name} ")


@pytest.mark.parametrize(
    "name",
    [
        *("A_TF32", "A_FP32", "A_BF16", "A_FP16", "A_FP8", "A_FPMATH", "A_PRECISION"),
        *("A_DOWNCAST", "A_ACCUM", "A_MATH_MODE"),
    ],
)
def test_each_kind_of_variable_that_bears_on_precision_is_named(name: str) -> None:
    assert finding({f"environment.{name}": "1"}).message == f"{name}=1"


def test_a_variable_that_was_changed_is_named_once_and_a_setting_that_is_gone_too() -> None:
    before = {**ORDINARY, "environment.A_TF32": "0", "torch.precision": "high"}
    after = {**ORDINARY, "environment.A_TF32": "1"}
    found = judge(SettingsEvidence(before=before, after=after), litmus(), "s.json", "l.json")
    assert found.message == "torch.precision high -> unset; A_TF32=1"
    assert found.evidence == ("s.json", "l.json")


@pytest.mark.parametrize(
    ("dtype", "bits"), [("bfloat16", 8), ("float16", 11), ("float32", 24), ("float64", 53)]
)
def test_operands_of_each_type_have_all_their_significant_bits_or_are_named(
    dtype: str, bits: int
) -> None:
    assert finding(dtype=dtype, operand_bits=bits).status is Status.PASS
    assert (
        f"keep {bits - 1} significant bits" in finding(dtype=dtype, operand_bits=bits - 1).message
    )
    assert finding(dtype=dtype).honest.startswith(f"operands of {bits} bits")


def test_six_remarks_are_told_in_full() -> None:
    found = finding({f"torch.backends.p{n}.fp32_precision": "tf32" for n in range(6)})
    assert found.message.count("; ") == 5
    assert "more" not in found.message
