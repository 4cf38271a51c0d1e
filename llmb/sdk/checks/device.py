"""Checks of the device: arithmetic, waiting, memory and energy, as far as measurable."""

from __future__ import annotations

import gc
import math
from collections.abc import Callable

import torch
from torch import Tensor

from llmb import clock
from llmb.plugin import Backend, DeviceMemory, EnergyReading
from llmb.plugin.backend import full_float32_products, lacks_of, memory_of
from llmb.sdk.checks import precisions
from llmb.sdk.report import CheckError, SkipError
from llmb.sdk.subject import Subject

#: Sides of the multiplied matrices, tried in turn until Python runs ahead of the device.
_SIDES = (64, 256, 1024, 2048)
_WORK_S = 0.1  # a burst of work takes at least about 0.1 s
#: After a single product of this length, done when the call returned, no larger product is tried:
#: without 16-bit instructions a processor needs 13 s for the largest in BF16.
_LONG_S = 0.5
_MOST_PRODUCTS = 4096
_REPEATS = 5
#: Largest share of the waiting time that may be left after synchronize.
_LEFT = 0.25
_NOISE_S = 0.003
_IDLE_S = 0.05
_BLOCK_BYTES = 64 * 2**20
_BLOCKS = 4
_PATIENCE_S = 2.0
_ENERGY_S = 0.25
_LACKS_SIDE = 64
#: Relative error of a product of positive values: 1e-6 in full FP32, 5e-4 in TF32, 4e-3 in BF16.
_FULL_ERROR = 1e-4


def arithmetic(subject: Subject) -> str:
    """Multiply two matrices of ones, and read the result back."""
    backend, device = subject.device, subject.config.device
    done = []
    for precision in precisions.offered(subject):
        dtype = getattr(torch, precision.stored_dtype, None)
        if dtype is None:
            continue  # ``precisions.formats`` reports a missing dtype
        try:
            product = torch.ones(8, 16).to(device, dtype) @ torch.ones(16, 8).to(device, dtype)
            backend.step_end()
            backend.synchronize()
            values = {*product.float().cpu().flatten().tolist()}
        except Exception as error:
            first_line = (str(error).splitlines() or [""])[0]
            raise CheckError(
                f"{precision.name} is offered, and multiplying two {precision.stored_dtype} "
                f"matrices on {device} raises {type(error).__name__}: {first_line}"
            ) from error
        if values != {16.0}:
            raise CheckError(
                f"{precision.name}: 16 ones times 16 ones is {sorted(values)[:3]}, not 16"
            )
        done.append(precision.name)
    return ", ".join(done)


def lacks(subject: Subject) -> str:
    """Check float64 and full FP32 products, unless the backend declares them as lacking."""
    backend, device = subject.device, subject.config.device
    lacking = lacks_of(backend)
    if not lacking.float64:
        try:
            torch.ones(2, dtype=torch.float64).to(device).add(1).cpu()
        except Exception as error:
            first_line = (str(error).splitlines() or [""])[0]
            raise CheckError(
                f"a float64 tensor on {device} raises {type(error).__name__}: {first_line}; a "
                "backend without float64 has lacks = Lacks(float64=True)"
            ) from error
    if not lacking.full_float32_products:
        generator = torch.Generator().manual_seed(0)
        one, other = torch.rand(2, _LACKS_SIDE, _LACKS_SIDE, generator=generator)
        with full_float32_products(backend):
            product = one.to(device) @ other.to(device)
            backend.step_end()
            backend.synchronize()
        right = one.double() @ other.double()
        error_of = ((product.cpu().double() - right).abs() / right).max().item()
        if error_of > _FULL_ERROR:
            raise CheckError(
                f"float32 products on {device} are wrong by {error_of:.1e}, more than "
                f"{_FULL_ERROR:.0e}: a backend gives full_float32_products(), or has "
                "lacks = Lacks(full_float32_products=True)"
            )
    return ", ".join(lacking.named()) or "nothing"


class _Work:
    """Matrix products of one side, enqueued in a row; each needs the previous product."""

    def __init__(self, subject: Subject, side: int) -> None:
        config = subject.config
        dtype = getattr(torch, config.precision.stored_dtype)
        self._backend = subject.device
        self._start = torch.rand(side, side).to(config.device, dtype)
        self._unit = torch.eye(side).to(config.device, dtype)
        self.products = 1

    def enqueue(self) -> Tensor:
        """Enqueue the products and return the last."""
        value = self._start
        for _ in range(self.products):
            value = value @ self._unit
            self._backend.step_end()  # where a lazy device cuts its graph
        return value

    def times_s(self, wait: Callable[[], None]) -> tuple[float, float, float]:
        """Return seconds spent enqueueing, in ``wait``, and then reading a value back."""
        begin = clock.now_ns()
        value = self.enqueue()
        enqueued = clock.now_ns()
        wait()
        waited = clock.now_ns()
        value[0, 0].item()
        read = clock.now_ns()
        return (enqueued - begin) / 1e9, (waited - enqueued) / 1e9, (read - waited) / 1e9


def _nothing() -> None:
    return


def _long_enough(subject: Subject, side: int) -> tuple[_Work, float, float]:
    """Return work of a measurable length, and the seconds of enqueueing and of reading back."""
    work = _Work(subject, side)
    work.times_s(_nothing)  # the first call loads or compiles kernels
    while True:
        enqueue_s, _, read_s = work.times_s(_nothing)
        if enqueue_s + read_s > _WORK_S or work.products >= _MOST_PRODUCTS:
            return work, enqueue_s, read_s
        work.products *= 2


def synchronize_waits(subject: Subject) -> str:
    """Enqueue work, synchronize, and check that a value is then read without more waiting."""
    backend = subject.device
    for side in _SIDES:
        work, enqueue_s, read_s = _long_enough(subject, side)
        if read_s > max(enqueue_s / 4, 2 * _NOISE_S):
            break
        if side == _SIDES[-1] or (work.products == 1 and enqueue_s > _LONG_S):
            return f"work on {backend.device_type} is done when a call returns"
    if backend.step_clock == "host":
        raise CheckError(
            f"step_clock is 'host', but {read_s * 1000:.0f} ms of work were outstanding when the "
            "calls had returned: it is 'enqueue'"
        )
    measured = [work.times_s(backend.synchronize) for _ in range(_REPEATS)]
    left_s = min(read for _, _, read in measured)
    limit_s = max(_LEFT * read_s, _NOISE_S)
    if left_s > limit_s:
        raise CheckError(
            f"synchronize returned {left_s * 1000:.1f} ms before the work was done (of "
            f"{read_s * 1000:.1f} ms outstanding; limit {limit_s * 1000:.1f} ms): it must wait for "
            "everything enqueued on every stream"
        )
    waited_s = min(wait for _, wait, _ in measured)
    return f"waited {waited_s * 1000:.0f} ms, then a value was read in {left_s * 1000:.2f} ms"


def synchronize_idle(subject: Subject) -> str:
    """Synchronize again and again, with no work outstanding."""
    backend = subject.device
    backend.synchronize()
    times_s = []
    for _ in range(_REPEATS):
        begin = clock.now_ns()
        backend.synchronize()
        times_s.append((clock.now_ns() - begin) / 1e9)
    if min(times_s) > _IDLE_S:
        raise CheckError(
            f"synchronize takes {min(times_s) * 1000:.0f} ms with nothing outstanding: every fence "
            "of a run would cost that"
        )
    return f"{min(times_s) * 1e6:.0f} us"


def step_marks(subject: Subject) -> None:
    """Mark a hundred empty steps, and one step with work."""
    backend = subject.device
    for _ in range(100):
        backend.step_begin()
        backend.step_end()
    backend.step_begin()
    value = torch.ones(4, 4).to(subject.config.device) + 1
    backend.step_end()
    backend.synchronize()
    if value.cpu().sum().item() != 32:
        raise CheckError("a value computed between step_begin and step_end is not what it must be")


class _HeldMemory:
    """Memory that is allocated and written, until ``drop``."""

    def __init__(self, subject: Subject) -> None:
        self._backend, self._device = subject.device, subject.config.device
        free = memory_of(self._backend).available_bytes
        self.bytes = _BLOCK_BYTES if free is None else min(_BLOCK_BYTES, max(2**20, free // 16))
        self._held: list[Tensor] = []

    def take(self) -> DeviceMemory:
        """Take one more block and read the memory."""
        self._held.append(torch.full((self.bytes // 4,), 1.0, device=self._device))
        return self._read()

    def drop(self) -> None:
        """Drop every block."""
        self._held.clear()
        gc.collect()
        self._read()

    def _read(self) -> DeviceMemory:
        self._backend.step_end()
        self._backend.synchronize()
        return memory_of(self._backend)


def memory(subject: Subject) -> str:
    """Check every figure while memory is held."""
    blocks = _HeldMemory(subject)
    found: object = blocks.take()
    if not isinstance(found, DeviceMemory):
        raise CheckError(f"memory() returned a {type(found).__name__}: expected DeviceMemory")
    figures = found.model_dump()
    for name, value in figures.items():
        if value is not None and value <= 0:
            raise CheckError(
                f"{name} is {value} while {blocks.bytes} bytes are held: what is not known is None"
            )
    total, available = found.total_bytes, found.available_bytes
    if total is not None and available is not None and available > total:
        raise CheckError(f"available_bytes is {available}, more than total_bytes, {total}")
    return ", ".join(f"{name} {value}" for name, value in figures.items())


def peak_memory(subject: Subject) -> str:
    """Take blocks, drop them, and start a new peak."""
    backend, blocks = subject.device, _HeldMemory(subject)
    backend.reset_peak_memory()
    before = memory_of(backend).peak_bytes
    held = [blocks.take().peak_bytes for _ in range(_BLOCKS)][-1]
    if held is None:
        raise SkipError("the backend does not tell its peak")
    taken = _BLOCKS * blocks.bytes
    if held - (before or 0) < taken // 2:
        raise CheckError(
            f"peak_bytes rose from {before} to {held} while {taken} bytes were taken: it is the "
            "highest use since reset_peak_memory, or None"
        )
    blocks.drop()
    backend.reset_peak_memory()
    anew = memory_of(backend).peak_bytes
    if anew is not None and held - anew < taken // 2:
        raise CheckError(
            f"peak_bytes is {anew} after {taken} bytes were dropped and reset_peak_memory called; "
            f"it was {held}: a new peak begins at the present use"
        )
    return f"rose by {held - (before or 0)} for {taken} bytes"


def available_memory(subject: Subject) -> str:
    """Hold memory until less is available; kernels count late, and other programs use memory."""
    backend, blocks = subject.device, _HeldMemory(subject)
    before = memory_of(backend).available_bytes
    readings = [blocks.take().available_bytes for _ in range(_BLOCKS)]
    begin = clock.now_ns()
    while clock.now_ns() - begin < _PATIENCE_S * 1e9:
        after = readings[-1]
        if before is None or after is None:
            raise SkipError("the backend does not tell how much is available")
        if before - after >= blocks.bytes:
            return f"fell by {before - after} for {_BLOCKS * blocks.bytes} bytes"
        readings.append(memory_of(backend).available_bytes)
    if {before} == {*readings}:
        raise CheckError(
            f"available_bytes stands at {before} while {_BLOCKS * blocks.bytes} bytes are taken: "
            "it is what can still be taken, or None"
        )
    return "it moves, but not with the memory that was taken: others use it too"


def energy(subject: Subject) -> str:
    """Read the energy counter before and after work."""
    backend = subject.device
    readings = [_energy(backend)]
    work = _Work(subject, 256)
    for _ in range(_REPEATS):
        begin = clock.now_ns()
        while clock.now_ns() - begin < _ENERGY_S * 1e9:
            work.enqueue()
            backend.synchronize()
        readings.append(_energy(backend))
    joules = [reading.joules for reading in readings]
    if joules != sorted(joules):
        raise CheckError(f"energy fell: {joules} J: it counts from a fixed moment, or is None")
    if joules[-1] <= joules[0]:
        raise CheckError(
            f"energy stood at {joules[0]} J through {_REPEATS * _ENERGY_S:.1f} s of work: "
            "what is not known is None"
        )
    kinds = {(reading.source, reading.scope) for reading in readings}
    if len(kinds) > 1:
        raise CheckError(f"energy changed its source or scope: {sorted(kinds)}")
    return f"{joules[-1] - joules[0]:.1f} J, {readings[0].source} of the {readings[0].scope}"


def _energy(backend: Backend) -> EnergyReading:
    reading: object = backend.energy()
    if reading is None:
        raise SkipError("the backend has no energy counter")
    if not isinstance(reading, EnergyReading):
        raise CheckError(f"energy() returned a {type(reading).__name__}: expected EnergyReading")
    if not math.isfinite(reading.joules) or reading.joules < 0:
        raise CheckError(f"energy() returned {reading.joules} J: what is not known is None")
    return reading
