"""Which way of multiplying is faster: asked of this processor, and of it as an older one."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator

import pytest
import torch

from llmb.plugin.builtin import cpu, host, products
from tests.e2e.harness import OLD_PROCESSOR, environment
from tests.unit.builders_runtime import run_config

_ASK = """
import json
from tests.unit.plugin.test_builtin_products import asked
print(json.dumps(asked()))
"""


def asked() -> tuple[dict[str, str], list[list[object]]]:
    """Return the faster way of both formats and the precisions offered, of this processor."""
    ways = {str(d): products.faster_way(d) for d in (torch.bfloat16, torch.float16)}
    offered = [[p.name, p.native, p.products, p.is_slow] for p in cpu.llmb_precisions(run_config())]
    return ways, offered


@pytest.fixture
def nothing_timed() -> Iterator[None]:
    products.faster_way.cache_clear()
    yield
    products.faster_way.cache_clear()


@pytest.mark.skipif("avx2" not in host.cpu_flags(), reason="these variables are for x86")
def test_a_processor_without_16_bit_instructions_widens_both_formats_and_offers_fp32_first() -> (
    None
):
    # What torch takes the processor for it finds out when it is loaded.
    done = subprocess.run(
        [sys.executable, "-c", _ASK],
        env=environment(**OLD_PROCESSOR),
        capture_output=True,
        check=True,
    )
    ways, offered = json.loads(done.stdout)
    assert ways == {"torch.bfloat16": "wide", "torch.float16": "wide"}
    assert offered == [
        ["FP32", True, None, False],
        ["BF16", False, "FP32", False],
        ["FP16", False, "FP32", False],
    ]


@pytest.mark.skipif("avx512_bf16" not in host.cpu_flags(), reason="it has no such instructions")
@pytest.mark.usefixtures("nothing_timed")
def test_a_processor_with_bf16_instructions_computes_in_them_and_offers_bf16_first() -> None:
    ways, offered = asked()
    assert ways["torch.bfloat16"] == "native"
    assert offered[0] == ["BF16", True, None, False]


@pytest.mark.usefixtures("nothing_timed")
@pytest.mark.parametrize(
    ("native_s", "wide_s", "way", "most"),
    [(1.0, 2.0, "native", 9), (2.0, 1.9, "wide", 9), (20.0, 1.0, "wide", 2)],
)
def test_the_best_try_of_each_way_counts_and_a_clear_answer_ends_the_tries(
    monkeypatch: pytest.MonkeyPatch, native_s: float, wide_s: float, way: str, most: int
) -> None:
    tries: list[str] = []

    def once_s(linear, x, w):  # type: ignore[no-untyped-def]
        name = "wide" if linear is products.wide_linear else "native"
        tries.append(name)
        disturbed = 100.0 if len(tries) <= 2 else 0.0  # the first of each was held up
        return (wide_s if name == "wide" else native_s) + disturbed

    monkeypatch.setattr(products, "_once_s", once_s)
    assert products.faster_way(torch.bfloat16) == way
    assert tries.count("native") == tries.count("wide") == most


@pytest.mark.usefixtures("nothing_timed")
def test_one_core_alone_is_timed_and_the_number_of_threads_is_what_it_was(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: set[int] = set()
    monkeypatch.setattr(products, "_once_s", lambda *_: seen.add(torch.get_num_threads()) or 1.0)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        products.faster_way(torch.bfloat16)
        assert (seen, torch.get_num_threads()) == ({1}, 2)
    finally:
        torch.set_num_threads(before)
