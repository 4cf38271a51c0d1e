"""Energy counters and published peaks: a figure with its source, or None."""

from __future__ import annotations

from pathlib import Path

import pytest
from llmb_xpu import datasheets, hwmon


def card(root: Path, number: int, name: str, **files: str) -> None:
    folder = root / f"hwmon{number}"
    folder.mkdir(parents=True)
    for file, text in {"name": name, **files}.items():
        (folder / file).write_text(f"{text}\n")


def test_the_counter_of_the_only_card_is_read_in_joules(tmp_path: Path) -> None:
    card(tmp_path, 0, "coretemp", energy1_input="9")
    card(tmp_path, 1, "xe", energy1_input="2500000", energy2_input="7")
    card(tmp_path, 2, "i915_gt0", energy1_input="9")
    reading = hwmon.energy(1, tmp_path)
    assert reading is not None
    assert (reading.joules, reading.source, reading.scope) == (2.5, "counter", "device")


def test_where_only_the_package_is_counted_the_scope_says_so(tmp_path: Path) -> None:
    card(tmp_path, 0, "xe", energy2_input="4000000")
    reading = hwmon.energy(1, tmp_path)
    assert reading is not None
    assert (reading.joules, reading.scope) == (4.0, "package")


@pytest.mark.parametrize(
    ("cards", "devices"),
    [([], 1), (["xe", "xe"], 1), (["xe", "i915"], 2), (["xe"], 2), (["amdgpu"], 1)],
)
def test_no_counter_is_read_where_it_is_not_clear_whose_it_is(
    tmp_path: Path, cards: list[str], devices: int
) -> None:
    for number, name in enumerate(cards):
        card(tmp_path, number, name, energy1_input="1000000")
    assert hwmon.energy(devices, tmp_path) is None


@pytest.mark.parametrize("text", ["", "none", "-1"])
def test_a_counter_that_holds_no_number_is_none_and_not_zero(tmp_path: Path, text: str) -> None:
    card(tmp_path, 0, "i915", energy1_input=text)
    assert hwmon.energy(1, tmp_path) is None


MAX = "Intel(R) Data Center GPU Max 1550"


@pytest.mark.parametrize(
    ("name", "units", "precision", "expected"),
    [
        (MAX, 1024, "BF16", 832e12),
        (MAX, 512, "BF16", 416e12),
        (MAX, 1024, "FP32", 52e12),
        (MAX, 1024, "FP8", None),
        (MAX, None, "BF16", None),
        ("Intel(R) Data Center GPU Max 1100", 448, "BF16", None),
        ("Intel(R) Arc(TM) Pro B60 Graphics", 160, "FP32", 12.28e12),
        ("Intel(R) Arc(TM) Pro B60 Graphics", 160, "BF16", None),
        ("Intel(R) Arc(TM) Pro B600 Graphics", 160, "FP32", None),
        ("Intel(R) Arc(TM) B580 Graphics", 160, "FP32", None),
        ("Intel(R) UHD Graphics 770", 32, "BF16", None),
    ],
)
def test_peaks_are_published_figures_or_none(
    name: str, units: int | None, precision: str, expected: float | None
) -> None:
    peak = datasheets.peak(name, units, precision)
    assert (peak and peak.flops_per_second) == expected
    assert peak is None or peak.source
