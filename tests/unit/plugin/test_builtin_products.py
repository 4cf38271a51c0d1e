"""Which way of multiplying is faster: asked of this processor, and of it as an older one."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from llmb.plugin.builtin import host, products
from tests.e2e.harness import OLD_PROCESSOR, environment

_ASK = """
import json, torch
from llmb.plugin.builtin import cpu
from llmb.plugin.builtin.products import faster_way
from tests.unit.builders_runtime import run_config
threads = torch.get_num_threads()
ways = {str(d): faster_way(d) for d in (torch.bfloat16, torch.float16)}
offered = [[p.name, p.native, p.products, p.is_slow] for p in cpu.llmb_precisions(run_config())]
print(json.dumps([ways, offered, torch.get_num_threads() == threads]))
"""


def asked(**env: str) -> tuple[dict[str, str], list[list[object]], bool]:
    found = environment(OMP_NUM_THREADS="2", **env)
    done = subprocess.run([sys.executable, "-c", _ASK], env=found, capture_output=True, check=True)
    ways, offered, restored = json.loads(done.stdout)
    return ways, offered, restored


@pytest.mark.skipif("avx2" not in host.cpu_flags(), reason="these variables are for x86")
def test_a_processor_without_16_bit_instructions_widens_both_formats_and_offers_fp32_first() -> (
    None
):
    ways, offered, restored = asked(**OLD_PROCESSOR)
    assert ways == {"torch.bfloat16": "wide", "torch.float16": "wide"}
    assert offered == [
        ["FP32", True, None, False],
        ["BF16", False, "FP32", False],
        ["FP16", False, "FP32", False],
    ]
    assert restored, "the number of threads"


@pytest.mark.skipif("avx512_bf16" not in host.cpu_flags(), reason="it has no such instructions")
def test_a_processor_with_bf16_instructions_computes_in_them_and_offers_bf16_first() -> None:
    ways, offered, _ = asked()
    assert ways["torch.bfloat16"] == "native"
    assert offered[0] == ["BF16", True, None, False]


@pytest.mark.parametrize(
    ("native_s", "wide_s", "way", "most"),
    [(1.0, 2.0, "native", 7), (2.0, 1.9, "wide", 7), (20.0, 1.0, "wide", 2)],
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
    products.faster_way.cache_clear()
    import torch

    assert products.faster_way(torch.bfloat16) == way
    assert tries.count("native") == tries.count("wide") == most
    products.faster_way.cache_clear()
