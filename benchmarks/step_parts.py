"""One training step on a processor by part, and the share of the FP32 products' rate it attains.

    python benchmarks/step_parts.py --way wide --workload llama-1.4b --steps 3
    ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2 python benchmarks/step_parts.py --way wide

``native`` has torch's own 16-bit products, ``wide`` the cpu plugin's products in FP32, ``fp32``
weights in FP32 too. The step is the bare module's and the fused AdamW's at batch size 1, without
llmb's processes. The rates are those of the model's widest product but the head's, in its three
directions.
"""

from __future__ import annotations

import argparse
import time
from statistics import median
from typing import Any

import torch

from llmb import workloads
from llmb.measure.rates import measure_rates
from llmb.plugin.builtin import host
from llmb.plugin.builtin.attention import write_out_attention
from llmb.plugin.builtin.wide import widen_products
from llmb.reference.models import build
from llmb.workloads.arithmetic import flops_per_token, gemms

#: Part -> what the names of its operators contain; the first that fits counts.
PARTS = {
    "products": ("mm", "gemm", "mkldnn_linear"),
    "attention": ("attention", "softmax"),
    "AdamW": ("adam",),
    "conversion": ("copy_",),
    "zeroing": ("zero_", "fill_"),
}


def part_of(operator: str) -> str:
    """Return the part of a step to which ``operator`` belongs."""
    fitting = (part for part, words in PARTS.items() if any(w in operator for w in words))
    return next(fitting, "norms and the rest")


def one_step(model: Any, optimizer: torch.optim.Optimizer, ids: torch.Tensor) -> float:
    """Return the seconds of a whole step."""
    begin = time.perf_counter()
    model(ids, labels=ids).backward()
    optimizer.step()
    optimizer.zero_grad()
    return time.perf_counter() - begin


def shares(model: Any, optimizer: torch.optim.Optimizer, ids: torch.Tensor) -> dict[str, float]:
    """Return the share of each part in the operators' own time of one step."""
    with torch.profiler.profile() as profile:
        one_step(model, optimizer, ids)
    found: dict[str, float] = {}
    for event in profile.key_averages():
        part = part_of(event.key.lower())
        found[part] = found.get(part, 0.0) + event.self_cpu_time_total
    total = sum(found.values())
    return {part: spent / total for part, spent in sorted(found.items(), key=lambda p: -p[1])}


def main() -> None:
    """Print a table of one way."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--way", choices=("native", "wide", "fp32"), default="wide")
    parser.add_argument("--workload", default="llama-1.4b")
    parser.add_argument("--steps", type=int, default=3, help="after one that is not counted")
    given = parser.parse_args()
    shape = workloads.find(given.workload, {}).shape
    widest = max(gemms(shape)[:-1], key=lambda gemm: gemm.k * gemm.n)
    tokens = shape.sequence_length
    types = ("float32",) if given.way == "fp32" else ("float32", "bfloat16")
    before = measure_rates(widest, tokens, types[: 2 if given.way == "native" else 1])
    model: Any = build(shape, 1, getattr(torch, types[-1]))
    if given.way == "wide":
        widen_products(model)
    else:
        write_out_attention(model)
    host.return_freed_memory()
    host.reset_peak_resident()
    host.keep_freed_memory()  # as the cpu plugin does
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
    ids = torch.randint(0, shape.vocab_size, (1, tokens))
    times = [one_step(model, optimizer, ids) for _ in range(given.steps + 1)][1:]
    parts = shares(model, optimizer, ids)
    peak = host.peak_resident_bytes() or 0
    after = measure_rates(widest, tokens, types[:1])
    step, flops = median(times), tokens * flops_per_token(shape)
    rate = max(one.flops_per_second["float32"] for one in (before, after))
    print(f"{given.workload}, {given.way}, {torch.backends.cpu.get_cpu_capability()}")
    print(f"step {step:.3f} s (" + ", ".join(f"{one:.3f}" for one in times) + ")")
    print(f"{flops / step / 1e12:.4f} TFLOP/s, {peak / 1e9:.2f} GB at the peak")
    for dtype, value in before.flops_per_second.items():
        print(f"products alone, {dtype}: {value / 1e12:.4f} TFLOP/s before")
    print(f"products alone, float32: {after.flops_per_second['float32'] / 1e12:.4f} after")
    print(f"share of the FP32 products' rate: {flops / step / rate:.3f}")
    for part, share in parts.items():
        print(f"  {part:20} {100 * share:5.1f} %  {share * step:7.3f} s")


if __name__ == "__main__":
    main()
