"""The check of ``documented.json``: what it accepts, and each thing for which it fails."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest

from tests.unit.plugin import documents

KNOWN: dict[str, Any] = {
    "status": documents.STATUS,
    "sources": {"manual": "Manual: https://example.org/manual", "log": "Log: https://example.org"},
    "answers": [{"source": "manual", "excerpt": "Power is in milliwatts."}],
    "devices": [
        {
            "properties": {"name": "Device 8", "major": 8, "minor": 0, "units": None},
            "nvml": {"power": 400000, "mode": [0, 0]},
            "rate": 835.5,
            "read": [
                {
                    "source": "log",
                    "excerpt": "Device 8 | 8.0 | MIG Disabled",
                    "fields": ["properties.name", "properties.major", "properties.minor"],
                },
                {"source": "log", "excerpt": "MIG Disabled", "fields": ["nvml.mode"]},
                {
                    "source": "log",
                    "excerpt": "85W / 400W",
                    "fields": ["nvml.power"],
                    "times": 1000,
                },
            ],
            "not_found": ["rate"],
        }
    ],
}
Change = Callable[[dict[str, Any]], Any]


def device(known: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = known["devices"][0]
    return found


def test_what_is_read_or_marked_as_not_found_is_accepted() -> None:
    documents.check(KNOWN)


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda known: known.update(status="recorded"), id="status"),
        pytest.param(lambda known: known["sources"].update(log="a log"), id="no address"),
        pytest.param(lambda known: known["sources"].update(x="https://x"), id="unused source"),
        pytest.param(lambda known: known["sources"].pop("log"), id="unknown source"),
        pytest.param(lambda known: device(known)["not_found"].clear(), id="not covered"),
        pytest.param(lambda known: device(known)["not_found"].append("nvml.mode"), id="both"),
        pytest.param(lambda known: device(known)["not_found"].append("other"), id="no such field"),
        pytest.param(lambda known: device(known)["read"][0].update(excerpt=""), id="no excerpt"),
        pytest.param(lambda known: known["answers"][0].update(excerpt="a " * 21), id="too long"),
        pytest.param(lambda known: device(known)["nvml"].update(power=300000), id="number"),
        pytest.param(lambda known: device(known)["nvml"].update(mode=[1, 1]), id="mode"),
        pytest.param(lambda known: device(known)["properties"].update(name="Device 9"), id="text"),
        pytest.param(lambda known: device(known)["properties"].update(minor=9), id="minor"),
        pytest.param(lambda known: device(known)["properties"].update(units=4), id="new figure"),
    ],
)
def test_a_figure_that_no_source_states_or_a_source_that_states_none_is_refused(
    change: Change,
) -> None:
    known = deepcopy(KNOWN)
    change(known)
    with pytest.raises(AssertionError):
        documents.check(known)


@pytest.mark.parametrize(
    ("excerpt", "value", "times"),
    [
        ("1,671 TFLOPS with sparsity", 835.5, 0.5),
        ("return 835e12", 835.5, 1e-12),
        ("4.5 PFLOPS", 2250, 500),
        ("clockRate | 1785000 kHz", 1785, 0.001),
    ],
)
def test_a_number_is_found_in_the_units_that_a_document_prints(
    excerpt: str, value: float, times: float
) -> None:
    assert documents.states(excerpt, value, times)
    assert not documents.states(excerpt, value * 1.01, times)
