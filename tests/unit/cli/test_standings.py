"""Who repeated a bundle, as ``llmb verify`` prints it."""

from __future__ import annotations

import pytest

from llmb.cli.standings import say_standings


def test_a_repetition_that_lacks_nothing_is_said_without_a_reason(
    capsys: pytest.CaptureFixture[str],
) -> None:
    each = {"bundle_id": "a" * 64, "tokens_per_second": 1234.5, "difference_percent": -1.5}
    repetitions = [{**each, "lacking": []}, {**each, "lacking": ["a key", "a link"]}]
    say_standings([{"bundle": "one", "verdict": "REPRODUCED", "reproductions": repetitions}])
    plain, short = (line for line in capsys.readouterr().out.splitlines() if "repeated" in line)
    assert plain.endswith("1,234.5 tokens/s, -1.50 %")
    assert short.endswith("-1.50 %; changes nothing: a key; a link")
