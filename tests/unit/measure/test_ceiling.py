"""The ceiling: every product in every direction, best of the bursts, with a clock of the test's."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from llmb import clock, workloads
from llmb.config import BF16, FP32, Precision
from llmb.measure import ceiling
from llmb.plugin.backend import DeviceMemory
from llmb.plugin.builtin.cpu import CpuBackend
from llmb.records.ceiling import Ceiling, SquareProduct
from llmb.workloads.arithmetic import gemms
from tests.unit.builders_runtime import TINY, run_config

SHAPE = workloads.find("llama-1.4b", TINY).shape
TOKENS = 16


class Clock:
    """Time that moves only when an operation is run."""

    def __init__(self) -> None:
        self.ns = 0

    def now_ns(self) -> int:
        return self.ns


class FakeBackend(CpuBackend):
    """A device whose every call is written down."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def synchronize(self) -> None:
        self.calls.append("synchronize")

    def step_end(self) -> None:
        self.calls.append("step_end")


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> Clock:
    fake = Clock()
    monkeypatch.setattr(clock, "now_ns", fake.now_ns)
    return fake


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> Ceiling:
    monkeypatch.setattr(ceiling, "_COPY_BYTES", 2**16)
    monkeypatch.setattr(ceiling, "_BURST_S", 1e-5)
    monkeypatch.setattr(ceiling, "_CORE_SQUARE", 32)
    config = run_config(precision=FP32, shape_overrides=TINY)
    return ceiling.measure_ceiling(CpuBackend(), config, SHAPE, TOKENS, seconds=0.0)


def test_every_product_of_the_model_is_timed_in_all_three_directions(measured: Ceiling) -> None:
    expected = {
        (gemm.name, direction, TOKENS, gemm.k, gemm.n, gemm.count)
        for gemm in gemms(SHAPE)
        for direction in ("forward", "grad_input", "grad_weight")
    }
    found = [(g.name, g.direction, g.m, g.k, g.n, g.count) for g in measured.gemms]
    assert set(found) == expected
    assert len(found) == len(expected)


def test_the_rate_is_all_flops_of_a_step_over_the_sum_of_the_best_times(measured: Ceiling) -> None:
    # 2 layers: q, k, v, o of 16x16; gate, up, down of 16x24; the head of 16x32000; 3 directions.
    flops = 3 * 2 * TOKENS * (2 * (4 * 256 + 3 * 384) + 16 * 32000)
    seconds = sum(g.best_s * g.count for g in measured.gemms)
    assert measured.flops_per_second == pytest.approx(flops / seconds)
    assert all(g.best_s > 0 for g in measured.gemms)


def test_the_best_product_is_the_fastest_of_the_models_own_and_the_squares(
    measured: Ceiling,
) -> None:
    rates = [2 * g.m * g.k * g.n / g.best_s for g in measured.gemms]
    rates += [2 * s.size**3 * s.at_once / s.best_s for s in measured.squares]
    assert measured.best_product_flops_per_second == max(rates)


def test_a_square_product_counts_two_operations_for_each_of_its_cubes_elements(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    square = SquareProduct(layout="plain", size=1000, at_once=3, best_s=1e-6)
    monkeypatch.setattr(ceiling, "_COPY_BYTES", 2**16)
    monkeypatch.setattr(ceiling, "_BURST_S", 1e-5)
    monkeypatch.setattr(ceiling, "_squares", lambda *_: (square,))
    config = run_config(precision=FP32, shape_overrides=TINY)
    found = ceiling.measure_ceiling(CpuBackend(), config, SHAPE, TOKENS, seconds=0.0)
    assert found.best_product_flops_per_second == pytest.approx(2 * 1000**3 * 3 / 1e-6)


def test_the_ceiling_says_at_which_precision_and_how_many_rows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen = set()

    def best_s(backend, operation, budget_s, burst_s=0.0) -> float:
        seen.add(operation().dtype)
        return 1.0

    monkeypatch.setattr(ceiling, "_COPY_BYTES", 2**10)
    monkeypatch.setattr(ceiling, "_best_s", best_s)
    config = run_config(precision=BF16, shape_overrides=TINY)
    found = ceiling.measure_ceiling(CpuBackend(), config, SHAPE, TOKENS, seconds=1.0)
    assert (found.precision, found.tokens) == ("BF16", TOKENS)
    assert seen == {torch.bfloat16, torch.float32}  # the copy is of float32


def test_memory_bandwidth_is_all_that_a_copy_reads_and_writes_over_its_best_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    results: list[torch.Tensor] = []

    def best_s(backend, operation, budget_s, burst_s=0.0) -> float:
        results.append(operation())
        return 0.25

    monkeypatch.setattr(ceiling, "_COPY_BYTES", 2**12)
    monkeypatch.setattr(ceiling, "_best_s", best_s)
    config = run_config(precision=BF16, shape_overrides=TINY)
    found = ceiling.measure_ceiling(CpuBackend(), config, SHAPE, TOKENS, seconds=1.0)
    assert found.memory_bytes_per_second == (2**12 + 2**12) / 0.25
    (copy,) = [result for result in results if result.dtype is torch.float32]
    assert copy.nbytes == 2**12
    assert bool((copy == -1).all()), "what was read was written, and nothing was aliased"


def test_memory_bandwidth_is_measured_on_this_machine(measured: Ceiling) -> None:
    assert measured.memory_bytes_per_second > 0


def test_each_direction_is_the_product_it_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    shapes: list[tuple[int, ...]] = []

    def best_s(backend, operation, budget_s) -> float:
        shapes.append(tuple(operation().shape))
        return 1.0

    monkeypatch.setattr(ceiling, "_best_s", best_s)
    gemm = gemms(SHAPE)[3]
    found = ceiling._directions(CpuBackend(), gemm, TOKENS, FP32, "cpu", 0.0)
    by_direction = {g.direction: shape for g, shape in zip(found, shapes, strict=True)}
    assert by_direction == {
        "forward": (TOKENS, 24),
        "grad_input": (TOKENS, 16),
        "grad_weight": (24, 16),
    }


def test_the_budget_is_shared_by_every_product_the_squares_and_the_copy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    budgets: list[float] = []

    def best_s(backend, operation, budget_s, burst_s=0.0) -> float:
        budgets.append(budget_s)
        return 1.0

    monkeypatch.setattr(ceiling, "_COPY_BYTES", 2**10)
    monkeypatch.setattr(ceiling, "_best_s", best_s)
    config = run_config(precision=FP32, shape_overrides=TINY)
    ceiling.measure_ceiling(CpuBackend(), config, SHAPE, TOKENS, seconds=38.0)
    assert sum(budgets) == pytest.approx(38.0)


@pytest.mark.parametrize(("free", "copied"), [(8 * 1024, 1024), (2**40, 4096), (None, 4096)])
def test_the_copy_takes_no_more_than_an_eighth_of_what_is_free(
    monkeypatch: pytest.MonkeyPatch, free: int | None, copied: int
) -> None:
    backend = FakeBackend()
    memory = DeviceMemory(total_bytes=free, available_bytes=free, peak_bytes=None)
    monkeypatch.setattr(backend, "memory", lambda: memory)
    monkeypatch.setattr(ceiling, "_COPY_BYTES", 4096)
    monkeypatch.setattr(ceiling, "_best_s", lambda *_: 1.0)
    assert ceiling._bandwidth(backend, "cpu", 1.0, 0.0) == 2 * copied


class Products:
    """Square products of a device's test: each takes as long as its work at one TFLOP/s."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.threads: list[int] = []
        self.sizes: list[int] = []
        self.bursts: list[float] = []
        monkeypatch.setattr(ceiling, "_square_products", self._products)
        monkeypatch.setattr(ceiling, "_best_s", self._best_s)

    def _products(self, size: int, precision: object, device: str) -> dict[str, int]:
        self.sizes.append(size)
        return {"plain": size, "packed": size}

    def _best_s(
        self, backend: object, size: int, budget_s: float, burst_s: float = ceiling._BURST_S
    ) -> float:
        self.threads.append(torch.get_num_threads())
        self.bursts.append(burst_s)
        return 2 * size**3 / 1e12


@pytest.fixture
def products(monkeypatch: pytest.MonkeyPatch) -> Products:
    return Products(monkeypatch)


@pytest.fixture
def three_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("three_threads")
def test_a_processor_is_measured_by_one_core_and_taken_times_all_that_may_compute(
    monkeypatch: pytest.MonkeyPatch, products: Products
) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 64)
    monkeypatch.setattr(ceiling, "compute_threads", lambda: 2)
    found = ceiling._squares(CpuBackend(), FP32, "cpu", 1.0)
    assert [(s.layout, s.size, s.at_once) for s in found] == [
        ("plain", 512, 3),
        ("packed", 512, 3),
    ]
    assert (products.threads, torch.get_num_threads()) == ([1, 1], 3)
    assert products.bursts == [0.0, 0.0], "single products find a quiet moment, bursts do not"


@pytest.mark.usefixtures("three_threads", "products")
@pytest.mark.parametrize(("cores", "physical", "at_once"), [(2, 1, 2), (2, 2, 2), (64, 32, 32)])
def test_no_more_cores_count_than_there_are_and_a_library_may_have_its_own_threads(
    monkeypatch: pytest.MonkeyPatch, cores: int, physical: int, at_once: int
) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: cores)
    monkeypatch.setattr(ceiling, "compute_threads", lambda: physical)
    assert ceiling._squares(CpuBackend(), FP32, "cpu", 1.0)[0].at_once == at_once


@pytest.mark.usefixtures("three_threads")
def test_threads_are_given_back_even_if_the_measurement_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fails(*_: object, **__: object) -> float:
        raise RuntimeError("out of luck")

    monkeypatch.setattr(ceiling, "_CORE_SQUARE", 8)
    monkeypatch.setattr(ceiling, "_best_s", fails)
    with pytest.raises(RuntimeError, match="out of luck"):
        ceiling._squares(CpuBackend(), FP32, "cpu", 1.0)
    assert torch.get_num_threads() == 3


@pytest.mark.parametrize(
    ("budget_s", "sizes"),
    [
        (0.0, [1024]),  # three of the next size would take 51 ms
        (0.06, [1024, 2048]),
        (0.5, [1024, 2048, 4096]),
        (9.9, [1024, 2048, 4096, 8192]),
    ],
)
def test_another_device_is_measured_at_rising_sizes_while_there_is_time(
    monkeypatch: pytest.MonkeyPatch, products: Products, budget_s: float, sizes: list[int]
) -> None:
    backend, unknown = (
        FakeBackend(),
        DeviceMemory(total_bytes=None, available_bytes=None, peak_bytes=None),
    )
    monkeypatch.setattr(backend, "memory", lambda: unknown)
    found = ceiling._squares(backend, FP32, "meta", budget_s)
    assert products.sizes == sizes
    assert [(s.layout, s.size, s.at_once) for s in found] == [("plain", n, 1) for n in sizes]


@pytest.mark.usefixtures("products")
@pytest.mark.parametrize(("spare", "largest"), [(0, 4096), (-1, 2048)])
def test_squares_take_no_more_than_an_eighth_of_the_memory(
    monkeypatch: pytest.MonkeyPatch, spare: int, largest: int
) -> None:
    backend, free = FakeBackend(), 8 * 3 * 4096**2 * 4 + spare
    memory = DeviceMemory(total_bytes=free, available_bytes=free, peak_bytes=None)
    monkeypatch.setattr(backend, "memory", lambda: memory)
    assert ceiling._squares(backend, FP32, "meta", 9.9)[-1].size == largest


def packs(dtype: torch.dtype) -> bool:
    """Return whether this processor's other library multiplies tensors of ``dtype``."""
    try:
        packed = torch.ones(8, 8, dtype=dtype).to_mkldnn()
        torch.nn.functional.linear(packed, packed)
    except RuntimeError:
        return False
    return True


@pytest.fixture(params=[True, False], ids=["16-bit instructions", "none"])
def has_16_bit_instructions(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> bool:
    """A processor of either kind: this one, or one whose library answers as the other kind's."""
    pack, linear = torch.Tensor.to_mkldnn, torch.nn.functional.linear

    def refused(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        if x.is_mkldnn and x.dtype is torch.bfloat16:
            raise RuntimeError("mkldnn_linear: bf16 path needs the cpu support avx512bw")
        return linear(x, w)

    def taken(tensor: torch.Tensor) -> torch.Tensor:  # a plain one does what is asked here
        return tensor if tensor.dtype is torch.bfloat16 else pack(tensor)

    if packs(torch.bfloat16) and not request.param:
        monkeypatch.setattr(torch.nn.functional, "linear", refused)
    if request.param and not packs(torch.bfloat16):
        monkeypatch.setattr(torch.Tensor, "to_mkldnn", taken)
    return request.param


@pytest.mark.parametrize("precision", [FP32, BF16])
def test_a_packed_product_is_the_plain_one_in_another_layout(
    precision: Precision, has_16_bit_instructions: bool
) -> None:
    torch.manual_seed(1)
    found = ceiling._square_products(24, precision, "cpu")
    if precision is BF16 and not has_16_bit_instructions:
        assert list(found) == ["plain"]
        return
    assert list(found) == ["plain", "packed"]
    plain, packed = found["plain"](), found["packed"]().to_dense()
    assert plain.dtype == packed.dtype
    assert torch.allclose(plain.float(), packed.float(), atol=0.1, rtol=0.02)


def test_a_format_that_only_one_library_knows_is_measured_with_that(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def unknown(self: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("not on this processor")

    monkeypatch.setattr(torch.Tensor, "to_mkldnn", unknown)
    assert list(ceiling._square_products(8, FP32, "cpu")) == ["plain"]
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    assert list(ceiling._square_products(8, FP32, "cpu")) == ["plain"]


def test_a_square_of_an_eight_bit_format_has_eight_bit_operands() -> None:
    fp8 = BF16.model_copy(update={"name": "FP8", "bits": 8})
    found = ceiling._square_products(32, fp8, "cpu")
    assert list(found) == ["plain"]
    assert found["plain"]().dtype is torch.bfloat16


def costs(time: Clock, milliseconds: Iterator[float]):
    """Return an operation that takes the next of ``milliseconds`` each time it is run."""

    def operation() -> torch.Tensor:
        time.ns += round(next(milliseconds) * 1e6)
        return torch.empty(0)

    return operation


def test_the_best_burst_counts_and_a_burst_is_its_mean(time: Clock) -> None:
    # Two single runs find 10 ms, so a burst of 20 ms holds two: 10+10, then 8+6, then 12+12.
    operation = costs(time, iter([30, 10, 10, 10, 8, 6, 12, 12]))
    assert ceiling._best_s(FakeBackend(), operation, 0.07) == pytest.approx(0.007)


@pytest.mark.parametrize(("budget_s", "runs"), [(0.03, 10), (0.06, 20), (0.6, 20), (0.0, 1)])
def test_three_bursts_take_no_longer_than_there_is(
    time: Clock, monkeypatch: pytest.MonkeyPatch, budget_s: float, runs: int
) -> None:
    bursts: list[int] = []

    def burst_s(backend: object, operation: object, repeats: int) -> float:
        bursts.append(repeats)
        time.ns += repeats * 1_000_000
        return 0.001

    monkeypatch.setattr(ceiling, "_burst_s", burst_s)
    ceiling._best_s(FakeBackend(), lambda: torch.empty(0), budget_s)
    assert set(bursts[2:]) == {runs}


@pytest.mark.parametrize(
    ("budget_s", "slower_ms", "bursts"),
    [(0.0, 4, 3), (0.2, 4, 6), (0.2, 0, 3), (0.2, 0.05, 3)],
    ids=["no time", "time", "alike", "nearly alike"],
)
def test_at_least_three_bursts_are_timed_and_more_while_there_is_time_and_they_differ(
    time: Clock, budget_s: float, slower_ms: float, bursts: int
) -> None:
    taken: list[float] = []

    def operation() -> torch.Tensor:
        taken.append(20 + max(0, len(taken) - 2) * slower_ms)
        time.ns += round(taken[-1] * 1e6)
        return torch.empty(0)

    ceiling._best_s(FakeBackend(), operation, budget_s)
    assert len(taken) == 2 + bursts


def test_a_burst_is_timed_from_an_idle_device_to_an_idle_device(time: Clock) -> None:
    backend = FakeBackend()

    def operation() -> torch.Tensor:
        backend.calls.append("operation")
        time.ns += 1_000_000
        return torch.empty(0)

    assert ceiling._burst_s(backend, operation, 2) == pytest.approx(0.001)
    each = ["operation", "step_end"]  # a lazy device cuts its graph after every operation
    assert backend.calls == ["synchronize", *each, *each, "synchronize"]


def test_the_ceiling_of_an_eight_bit_format_is_that_of_eight_bit_products() -> None:
    generator = torch.Generator().manual_seed(1)
    x, w, y = (
        torch.randn(size, generator=generator).bfloat16() for size in ((32, 64), (48, 64), (32, 48))
    )
    exact, coarse = ceiling._products(x, w, y), ceiling._eight_bit_products(x, w, y)
    for direction, product in exact.items():
        expected, found = product().float(), coarse[direction]().float()
        assert found.shape == expected.shape
        error = (found - expected).norm() / expected.norm()
        assert 0.02 < error < 0.1, "three or two bits of mantissa, summed over a row"


def test_an_eight_bit_format_is_measured_with_those_products(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    used = []
    real = ceiling._eight_bit_products
    monkeypatch.setattr(ceiling, "_eight_bit_products", lambda *t: used.append(t) or real(*t))
    fp8 = BF16.model_copy(update={"name": "FP8", "bits": 8})
    by_name = {gemm.name: gemm for gemm in gemms(SHAPE)}
    for name in ("lm_head", next(iter(by_name))):  # the head is in the wider format in FP8 training
        assert len(ceiling._directions(CpuBackend(), by_name[name], TOKENS, fp8, "cpu", 0.0)) == 3
    assert len(used) == 1


def test_a_device_without_the_common_eight_bit_types_is_measured_in_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def other_types_only(left: torch.Tensor, *_: object, **__: object) -> torch.Tensor:
        raise RuntimeError("only fnuz types")

    assert ceiling._eight_bit_types(torch.device("cpu"))[0] == torch.float8_e4m3fn
    monkeypatch.setattr(torch, "_scaled_mm", other_types_only)
    assert ceiling._eight_bit_types(torch.device("cpu")) == (
        torch.float8_e4m3fnuz,
        torch.float8_e5m2fnuz,
    )


class Device(CpuBackend):
    device_type = "warp"


def test_a_devices_heaviest_product_is_also_made_for_two_seconds_without_a_gap(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[int] = []

    def burst_s(backend: object, operation: object, repeats: int) -> float:
        made.append(repeats)
        return 0.5

    monkeypatch.setattr(ceiling, "_COPY_BYTES", 2**10)
    monkeypatch.setattr(ceiling, "_squares", lambda *_: ())
    monkeypatch.setattr(ceiling, "_best_s", lambda *_, **__: 0.25)
    monkeypatch.setattr(ceiling, "_burst_s", burst_s)
    config = run_config(precision=FP32, shape_overrides=TINY)
    found = ceiling.measure_ceiling(Device(), config, SHAPE, TOKENS, seconds=10.0)
    most = max(found.gemms, key=lambda gemm: gemm.count)
    held = found.sustained
    assert held is not None
    assert (held.name, held.direction) == (most.name, most.direction)
    assert made[-1] == 8, "two seconds of a quarter each"
    assert held.seconds == 4.0, "as it took in the end"
    assert held.flops_per_second == 2 * most.m * most.k * most.n / 0.5
    assert found.sustained_share == 0.5


def test_a_processors_bursts_are_all_there_is(measured: Ceiling) -> None:
    assert measured.sustained is None
    assert measured.sustained_share is None


def test_where_the_device_draws_no_numbers_the_factors_of_products_are_the_hosts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    drawn, normal = [], torch.Tensor.normal_

    def refused(self: torch.Tensor) -> torch.Tensor:
        drawn.append(self.dtype)
        if self.dtype is torch.bfloat16:
            raise NotImplementedError("aten::normal_ is not implemented for this device")
        return normal(self)

    monkeypatch.setattr(torch.Tensor, "normal_", refused)
    found = ceiling._random((64, 64), torch.bfloat16, "cpu")
    assert drawn == [torch.bfloat16, torch.float32]
    assert (found.dtype, found.shape) == (torch.bfloat16, (64, 64))
    assert found.float().std().item() == pytest.approx(1, abs=0.1)
