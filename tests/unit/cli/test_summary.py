"""Lines of the summary of a run."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from llmb.cli import summary
from llmb.records.ceiling import Ceiling, GemmCeiling, SustainedProduct


def test_the_share_of_a_run_says_of_which_ceiling_it_is() -> None:
    gemm = GemmCeiling(name="lm_head", direction="forward", m=10, k=10, n=10, count=1, best_s=1e-6)
    held = SustainedProduct(
        name="lm_head", direction="forward", seconds=2.0, flops_per_second=1.8e9
    )
    ceiling = Ceiling(
        precision="BF16",
        tokens=10,
        gemms=(gemm,),
        flops_per_second=1e12,
        memory_bytes_per_second=1e10,
        sustained=held,
    )
    result = SimpleNamespace(fraction_of_ceiling=0.61)
    both = SimpleNamespace(before=ceiling, after=ceiling)
    record: Any = SimpleNamespace(result=result, ceilings=both)
    assert summary._ceiling(record) == (
        "61.0% of the 1 TFLOP/s its matrix products attain here in bursts of 20 ms; "
        "lm_head holds 90.0% of its burst's rate for 2 s"
    )
