"""``llmb calibrate``: what cannot be is refused before anything is measured."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from llmb.cli import calibrate
from llmb.errors import UsageError
from llmb.measure.link_words import size_of
from llmb.records.ceiling import Ceiling, SquareProduct

FILE = "--hardware-file=mine.json"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--nproc=2"], "--nproc goes with --hardware-file"),
        (["--network-gbps=200"], "--network-gbps goes with --hardware-file"),
        (["--memory-gb=80"], "--memory-gb goes with --hardware-file"),
        (["--hardware-file=mine"], "--hardware-file mine: its name must end in .json"),
        (["--hardware-file=nowhere/mine.json"], "there is no folder nowhere"),
    ],
)
def test_what_does_not_go_together_is_one_line(words, says):
    with pytest.raises(UsageError) as error:
        CliRunner().invoke(calibrate.command, words, catch_exceptions=False)
    assert says in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "words",
    [
        *([FILE, "--nproc=0"], [FILE, "--network-gbps=-1"], [FILE, "--memory-gb=0"]),
        *(["--batch-size=0"], ["--seconds=soon"], ["--seconds=nan"], ["--seconds=inf"], ["--fly"]),
    ],
)
def test_a_value_out_of_range_is_a_usage_error_that_names_its_option(words):
    found = CliRunner().invoke(calibrate.command, words)
    assert found.exit_code == 2
    assert words[-1].partition("=")[0] in found.output


@pytest.mark.parametrize(
    ("count", "shown"),
    [(0, "0 B"), (64, "64 B"), (65536, "64 KiB"), (2**20, "1 MiB"), (3 * 2**29, "1.5 GiB")],
)
def test_a_size_is_shown_in_the_largest_unit_it_fills(count, shown):
    assert size_of(count) == shown


def test_a_square_on_every_core_is_shown_with_the_rate_of_all(capsys) -> None:
    ceiling = Ceiling(
        precision="FP32",
        tokens=256,
        gemms=(),
        flops_per_second=1e12,
        memory_bytes_per_second=1e10,
        squares=(SquareProduct(layout="plain", size=1000, at_once=2, best_s=0.002),),
        best_product_flops_per_second=2e12,
    )
    calibrate._print(ceiling, {})
    assert "2.000 TFLOP/s 100.0% of that  (2 x one core)" in capsys.readouterr().out
