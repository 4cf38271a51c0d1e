"""What a run is said to need of a device is what its tensors take, counted without memory."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest

from llmb import workloads
from llmb.config import BF16, FP32, Parallelism, Precision
from llmb.reference.shapes import BertShape
from llmb.simulation.rank import simulate
from llmb.supervision.memory import Load, needed_bytes
from llmb.workloads import Workload

MIXED = BF16.model_copy(update={"master_weights": True})
GIB = 2**30


def workload(name: str) -> Workload:
    found = workloads.find(name, {})
    if isinstance(found.shape, BertShape):  # no device's kernel keeps the scores of attention
        found = replace(found, shape=replace(found.shape, dropout=0.0))
    return found


#: In plain `tox` a family at a time: the others of the same family differ in their sizes alone.
NAMES = ["llama-1.4b", "llama-410m", "gpt2-350m", "llama-3.1-8b-proxy", "nemo-bert-base"]
QUICK = {("llama-1.4b", True, 1), ("gpt2-350m", False, 64), ("nemo-bert-base", False, 1)}


@pytest.mark.parametrize(
    ("name", "mixed", "size"),
    [
        pytest.param(*case, marks=() if case in QUICK else pytest.mark.full)
        for case in product(NAMES, [False, True], [1, 64])
    ],
)
def test_a_devices_need_is_within_a_sixth_of_the_counted_peak(
    name: str, mixed: bool, size: int
) -> None:
    chosen = workload(name)
    counted = simulate(chosen, Parallelism(), 0, micro_batch=size, mixed_precision=mixed)
    copy = counted.weights_bytes  # which the audit sets aside
    load = Load(host=False)
    needed = needed_bytes(chosen, MIXED if mixed else BF16, size, load) - GIB
    assert needed / (counted.peak_bytes + copy) == pytest.approx(1, abs=0.15)


@pytest.mark.parametrize("size", [1, 8, 64])
def test_a_processor_needs_more_than_a_device(size: int) -> None:
    chosen = workload("llama-1.4b")
    host, device = (needed_bytes(chosen, BF16, size, Load(host=host)) for host in (True, False))
    assert host > device if size > 1 else host < device


def test_the_official_run_at_batch_size_128_is_said_to_fit_on_80_gb() -> None:
    """Its activations, weights, moments and the audit's copy are counted at 74 GB."""
    chosen = workload("llama-1.4b")
    assert 74e9 < needed_bytes(chosen, BF16, 128, Load(host=False)) < 79.2e9


@pytest.mark.parametrize(
    ("name", "precision", "size", "measured_gb"),
    [
        ("llama-1.4b", BF16, 8, 17.3),
        ("llama-128m", BF16, 16, 7.11),
        ("llama-45m", FP32, 32, 12.52),
        ("nemo-bert-base", FP32, 8, 21.36),
        ("gpt2-125m", MIXED, 4, 8.31),
    ],
)
def test_a_processor_needs_more_than_was_measured_and_at_most_36_percent_more(
    name: str, precision: Precision, size: int, measured_gb: float
) -> None:
    found = workloads.find(name, {})
    needed_gb = needed_bytes(found, precision, size, Load(audited=False)) / 1e9
    assert measured_gb < needed_gb < 1.36 * measured_gb
