"""Lines of the summary of a run."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from llmb.cli import run, summary
from llmb.records.ceiling import Ceiling, GemmCeiling, SustainedProduct
from llmb.records.lacks import Lacks
from tests.builders import make_record


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


def test_a_summary_names_what_the_device_lacks_and_has_no_line_where_it_lacks_nothing() -> None:
    record = make_record()
    assert "device lacks" not in dict(summary._rows(record))
    lacks = Lacks(full_float32_products=True, minutes_per_program=3)
    plugin = record.plugin.model_copy(update={"lacks": lacks})
    rows = dict(summary._rows(record.model_copy(update={"plugin": plugin})))
    assert rows["device lacks"] == "full FP32 products, a quick compiler (about 3 min a program)"


@pytest.mark.parametrize(
    ("steps", "repeats", "note"),
    [
        (20, 1, "no 95 % interval: 2 fence blocks are too few; use --repeats 5"),
        (50, 2, "no 95 % interval: 2 repeats are too few; use --repeats 5"),
        (30, 1, None),
        (20, 5, None),
    ],
    ids=["two blocks", "two repeats", "three blocks", "five repeats"],
)
def test_two_values_print_no_interval_but_the_reason_and_the_option(
    capsys: pytest.CaptureFixture[str], steps: int, repeats: int, note: str | None
) -> None:
    record = make_record(repeats=repeats, timed_steps=steps)
    assert record.result.ci95 is not None, "the record keeps the interval"
    summary.print_summary(record)
    text = capsys.readouterr().out
    assert ("95 % interval" in text.splitlines()[0]) is (note is None)
    assert ("no 95 % interval" in text) is (note is not None)
    assert note is None or note in text


def summarised(capsys: pytest.CaptureFixture[str], lines: int | None) -> list[str]:
    record = make_record().model_copy(update={"warnings": [f"warning {n}" for n in range(9)]})
    summary.print_summary(record, lines=lines)
    return capsys.readouterr().out.splitlines()


def test_a_summary_too_long_for_the_screen_keeps_headline_first_rows_and_verdict(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    whole = summarised(capsys, None)
    assert summarised(capsys, 60) == whole
    brief = summarised(capsys, 17)
    assert len(brief) <= 17 < len(whole)
    assert brief[0] == whole[0]
    assert brief[-1] == whole[-1]
    assert any(line.startswith("share of ceiling") for line in brief)
    assert any("more rows: llmb show RUN_DIR" in line for line in brief)


def test_the_next_commands_name_the_run_and_mark_a_debug_run() -> None:
    found = run._next(Path("runs/a b"), official=False)
    assert found.splitlines()[0] == "next: llmb show 'runs/a b'"
    assert found.endswith("llmb package-submission 'runs/a b' \\\n        --submitter ID --debug")
    assert "--debug" not in run._next(Path("runs/a"), official=True)
