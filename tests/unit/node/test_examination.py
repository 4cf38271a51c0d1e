"""What a node is held against: the median of devices that worked alone, or nothing."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from llmb.node import examination


def alone(tokens_per_second: float | None) -> Any:
    rate = SimpleNamespace(tokens_per_second=tokens_per_second)
    return SimpleNamespace(alone=None if tokens_per_second is None else rate)


@pytest.mark.parametrize(
    ("record", "rates", "due"),
    [
        ("a record", [30.0, None, 10.0, 20.0], ("submissions", "a record", 20.0)),
        ("a record", [None], None),
        (None, [30.0], None),
    ],
)
def test_the_nearest_submission_is_asked_for_with_the_median_of_devices_that_worked_alone(
    monkeypatch: pytest.MonkeyPatch, record: str | None, rates: list[float | None], due: object
) -> None:
    monkeypatch.setattr(examination, "nearest", lambda *asked: asked)
    node: Any = SimpleNamespace(
        _devices=[alone(rate) for rate in rates],
        _record=record,
        _plan=SimpleNamespace(submissions="submissions"),
    )
    assert examination._NodeExamination._nearest(node) == due
