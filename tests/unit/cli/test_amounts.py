"""Times on the command line."""

from __future__ import annotations

import click
import pytest

from llmb.cli.amounts import Time


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("30m", 1800), ("1h30m", 5400), (" 2H ", 7200)]
)
def test_a_time_is_numbers_with_units(text: str, seconds: float) -> None:
    assert Time().convert(text, None, None) == seconds


@pytest.mark.parametrize("text", ["10", "m", "1.5h", "-3m", "10m!", "", "0s", "٣m", "1d"])
def test_what_is_no_time_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(click.BadParameter, match="write"):
        Time().convert(text, None, None)
