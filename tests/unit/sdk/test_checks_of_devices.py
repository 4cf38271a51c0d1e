"""Checks that measure a device: each way in which a backend can be wrong is seen."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from llmb.config import FP32, Precision
from llmb.plugin import DeviceMemory, EnergyReading, Lacks
from llmb.sdk.checks import device
from llmb.sdk.report import SkipError
from tests.unit.sdk.stubs import fails, in_turn, subject

GB = 2**30


@pytest.fixture(autouse=True)
def brief(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks and bursts of work are small: nothing of the host itself is measured here."""
    for name, value in {
        "_BLOCK_BYTES": 4096,
        "_ENERGY_S": 0.0,
        "_PATIENCE_S": 0.01,
        "_SIDES": (8, 16),
        "_MOST_PRODUCTS": 2,
    }.items():
        monkeypatch.setattr(device, name, value)


def memory(
    total: int | None = None, available: int | None = None, peak: int | None = None
) -> DeviceMemory:
    return DeviceMemory(total_bytes=total, available_bytes=available, peak_bytes=peak)


def with_memory(*readings: object, reset: Callable[[], None] = lambda: None) -> Any:
    answers = {"memory": in_turn(*readings), "reset_peak_memory": reset}
    return subject(answers=answers)


# -- arithmetic, marks ------------------------------------------------------------------------


def test_products_of_every_stored_type_are_tried() -> None:
    formats = (FP32, Precision(name="FP8", bits=8, dtype="float8_e4m3fn", master_weights=True))
    assert device.arithmetic(subject(precisions=lambda config: formats)) == "FP32, FP8"


def test_a_format_in_which_nothing_can_be_multiplied_is_named() -> None:
    formats = (FP32, Precision(name="FP4", bits=4, dtype="float4_e2m1fn_x2"))
    fails(device.arithmetic, subject(precisions=lambda config: formats), "FP4", "raises")


def test_a_product_that_is_wrong_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "ones", lambda *shape: torch.full(shape, 2.0))
    fails(device.arithmetic, subject(), "BF16", "64.0", "not 16")


def test_steps_are_marked_a_hundred_times() -> None:
    marks = []
    answers = {"step_begin": lambda: marks.append("b"), "step_end": lambda: marks.append("e")}
    device.step_marks(subject(answers=answers))
    assert marks == ["b", "e"] * 101


# -- memory -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reading", "words"),
    [
        (memory(total=0), ("total_bytes is 0",)),
        (memory(available=-1), ("available_bytes is -1",)),
        (memory(peak=0), ("peak_bytes is 0", "None")),
        (memory(total=GB, available=2 * GB), ("more than total_bytes",)),
        ((1, 2, 3), ("returned a tuple",)),
    ],
)
def test_memory_that_cannot_be_is_refused(reading: object, words: tuple[str, ...]) -> None:
    looked_at = with_memory(memory(), reading)
    fails(device.memory, looked_at, *words)


def test_memory_that_is_not_known_passes() -> None:
    assert device.memory(subject()) == "total_bytes None, available_bytes None, peak_bytes None"
    with pytest.raises(SkipError):
        device.peak_memory(subject())
    with pytest.raises(SkipError):
        device.available_memory(subject())


class Counter:
    """Counts what is held: ``peak`` and ``reset`` may be wrong in one way or another."""

    def __init__(self, *, rises: bool = True, resets: bool = True) -> None:
        self.rises, self.resets, self.peak = rises, resets, 100

    def memory(self) -> DeviceMemory:
        self.peak += 4096 if self.rises else 0
        return memory(peak=self.peak)

    def reset(self) -> None:
        if self.resets:
            self.peak = 100

    @property
    def answers(self) -> dict[str, Any]:
        return {"memory": self.memory, "reset_peak_memory": self.reset}


def test_a_peak_that_rises_and_starts_anew_passes() -> None:
    assert "rose by" in device.peak_memory(subject(answers=Counter().answers))


def test_a_peak_that_stands_still_is_refused() -> None:
    looked_at = subject(answers=Counter(rises=False).answers)
    fails(device.peak_memory, looked_at, "rose from 100 to 100")


def test_a_peak_that_cannot_be_started_anew_is_refused() -> None:
    fails(device.peak_memory, subject(answers=Counter(resets=False).answers), "a new peak")


def test_available_memory_that_stands_still_is_refused() -> None:
    fails(device.available_memory, with_memory(memory(available=GB)), "stands at")


def test_available_memory_that_falls_passes() -> None:
    falling = [memory(available=GB - 4096 * n) for n in range(6)]
    assert "fell by" in device.available_memory(with_memory(*falling))


def test_available_memory_that_others_use_too_passes() -> None:
    noisy = [memory(available=GB + 100 * (n % 7)) for n in range(100)]
    assert "others use it too" in device.available_memory(with_memory(*noisy))


# -- energy -----------------------------------------------------------------------------------


def joules(*values: float, **changes: Any) -> Any:
    readings = [EnergyReading(joules=j, source="counter", scope="device") for j in values]
    if changes:
        readings[-1] = readings[-1].model_copy(update=changes)
    return subject(answers={"energy": in_turn(*readings)})


def test_energy_that_rises_passes() -> None:
    said = device.energy(joules(1.0, 2.0, 3.0, 4.0, 5.0, 6.0))
    assert said == "5.0 J, counter of the device"


@pytest.mark.parametrize(
    ("looked_at", "word"),
    [
        (joules(5.0, 4.0), "fell"),
        (joules(5.0), "stood at 5.0 J"),
        (joules(-1.0), "-1.0 J"),
        (joules(1, 2, 3, 4, 5, 6, scope="node"), "source or scope"),
        (subject(answers={"energy": lambda: 3.0}), "expected EnergyReading"),
    ],
)
def test_energy_that_cannot_be_is_refused(looked_at: Any, word: str) -> None:
    fails(device.energy, looked_at, word)


def test_energy_without_a_counter_is_skipped() -> None:
    with pytest.raises(SkipError, match="no energy counter"):
        device.energy(subject())


# -- waiting ----------------------------------------------------------------------------------


class Queue:
    """A device in simulated time: work takes a while after it has been enqueued."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, waits: float, idle_s: float = 0) -> None:
        self.now_s, self.done_s, self.waits, self.idle_s = 0.0, 0.0, waits, idle_s
        monkeypatch.setattr(device.clock, "now_ns", lambda: int(self.now_s * 1e9))
        monkeypatch.setattr(device._Work, "enqueue", self.enqueue)

    def enqueue(self) -> Any:
        self.now_s += 0.001
        self.done_s = max(self.done_s, self.now_s) + 0.2
        return self

    def __getitem__(self, place: object) -> Any:
        return self

    def item(self) -> float:
        self.now_s = max(self.now_s, self.done_s)
        return 0.0

    def synchronize(self) -> None:
        self.now_s += self.idle_s + self.waits * max(0.0, self.done_s - self.now_s)

    def subject(self, step_clock: str = "enqueue") -> Any:
        return subject(answers={"synchronize": self.synchronize, "step_clock": step_clock})


def test_a_synchronize_that_waits_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    said = device.synchronize_waits(Queue(monkeypatch, waits=1.0).subject())
    assert said == "waited 200 ms, then a value was read in 0.00 ms"


@pytest.mark.parametrize("share", [0.0, 0.5, 0.7])
def test_a_synchronize_that_returns_too_early_is_refused(
    monkeypatch: pytest.MonkeyPatch, share: float
) -> None:
    looked_at = Queue(monkeypatch, waits=share).subject()
    fails(device.synchronize_waits, looked_at, "before the work was done", "every stream")


def test_a_step_clock_that_claims_to_be_the_hosts_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looked_at = Queue(monkeypatch, waits=1.0).subject(step_clock="host")
    fails(device.synchronize_waits, looked_at, "'enqueue'")


def test_work_that_is_done_when_a_call_returns_needs_no_waiting() -> None:
    assert "when a call returns" in device.synchronize_waits(subject())


def test_after_a_long_product_no_larger_product_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = list[int]()

    def slow(self: device._Work, wait: Callable[[], None]) -> tuple[float, float, float]:
        tried.append(len(self._start))
        return 0.6, 0.0, 0.0

    monkeypatch.setattr(device._Work, "times_s", slow)
    assert "when a call returns" in device.synchronize_waits(subject())
    assert {*tried} == {8}


def test_a_synchronize_that_always_takes_long_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    queue = Queue(monkeypatch, waits=1.0, idle_s=0.3)
    fails(device.synchronize_idle, queue.subject(), "300 ms")
    queue.idle_s = 0.001
    assert device.synchronize_idle(queue.subject()) == "1000 us"


# -- what is lacking --------------------------------------------------------------------------


def no_float64(monkeypatch: pytest.MonkeyPatch) -> None:
    to = torch.Tensor.to

    def refused(self: torch.Tensor, *how: Any) -> torch.Tensor:
        if self.dtype is torch.float64:
            raise TypeError("Cannot convert a MPS Tensor to float64 dtype")
        return to(self, *how)

    monkeypatch.setattr(torch.Tensor, "to", refused)


def test_a_device_that_has_everything_lacks_nothing() -> None:
    assert device.lacks(subject()) == "nothing"


def test_float64_that_is_not_there_has_to_be_declared(monkeypatch: pytest.MonkeyPatch) -> None:
    no_float64(monkeypatch)
    fails(device.lacks, subject(), "Cannot convert a MPS Tensor", "lacks = Lacks(float64=True)")
    declared = {"lacks": Lacks(float64=True, memory_figures=True)}
    assert device.lacks(subject(answers=declared)) == "float64, memory figures"


def test_narrow_float32_products_have_to_be_made_full_or_declared(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    narrow, asked = torch.Tensor.__matmul__, [False]

    def product(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        if one.dtype is torch.float32 and not asked[0]:
            one, other = one.bfloat16().float(), other.bfloat16().float()
        return narrow(one, other)

    @contextmanager
    def full() -> Iterator[None]:
        asked[0] = True
        yield
        asked[0] = False

    monkeypatch.setattr(torch.Tensor, "__matmul__", product)
    fails(device.lacks, subject(), "full_float32_products()", "Lacks(full_float32_products=True)")
    assert device.lacks(subject(answers={"full_float32_products": full})) == "nothing"
    declared = {"lacks": Lacks(full_float32_products=True)}
    assert device.lacks(subject(answers=declared)) == "full FP32 products"
