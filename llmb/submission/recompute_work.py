"""The second path over work: shapes, parameters, FLOPs, class of the run, attainable ceiling.

The official sizes and formulas are written out again here; ``llmb.workloads`` is not asked.
"""

from __future__ import annotations

from collections import Counter

from llmb.config import FP32
from llmb.records.run_record import Ceiling, RunRecord
from llmb.submission.comparison import Comparison

Shapes = dict[str, int | float | None]

#: The fixed workload, as in the rules.
_OFFICIAL: dict[str, Shapes] = {
    "llama-1.4b": {
        "vocab_size": 32000,
        "hidden_size": 3200,
        "intermediate_size": 6400,
        "num_hidden_layers": 12,
        "num_attention_heads": 32,
        "num_key_value_heads": 32,
        "sequence_length": 256,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "initializer_range": 0.02,
        "padding_idx": 0,
    }
}
_OFFICIAL_TIMED_STEPS = 50
_NEEDED = {name for name, size in _OFFICIAL["llama-1.4b"].items() if isinstance(size, int)}


def compare_workload(record: RunRecord, comparison: Comparison) -> None:
    """Compare shapes, parameters, FLOPs and tokens per step, and the class of the run."""
    official = _OFFICIAL.get(record.config.workload)
    if official is None:
        known = ", ".join(_OFFICIAL)
        comparison.expect("config.workload", record.config.workload, f"one of {known}")
        return
    overrides: dict[str, int] = dict(record.config.shape_overrides.items())
    shapes: Shapes = {**official, **overrides}
    if "num_attention_heads" in overrides:
        shapes["num_key_value_heads"] = overrides["num_attention_heads"]
    comparison.expect("workload.shapes", record.workload.shapes, shapes)
    sizes = {name: size for name, size in shapes.items() if isinstance(size, int)}
    facts = record.workload
    positive = all(size > 0 for size in overrides.values())
    if comparison.require("config.shape_overrides", dict(overrides), positive, "at least 1 each"):
        comparison.expect("workload.parameters", facts.parameters, _parameters(sizes))
        flops = _training_flops_per_token(sizes)
        comparison.expect("workload.flops_per_token", facts.flops_per_token, flops)
    tokens = record.config.batch_size * sizes["sequence_length"]
    comparison.expect("workload.tokens_per_step", facts.tokens_per_step, tokens)
    _compare_class(record, official, comparison)


def _compare_class(record: RunRecord, official: Shapes, comparison: Comparison) -> None:
    config = record.config
    changed = any(official[name] != size for name, size in config.shape_overrides.items())
    debug = changed or config.timed_steps < _OFFICIAL_TIMED_STEPS
    comparison.expect("class", record.class_, "debug" if debug else "official")
    must = "the reasons why this is a debug run" if debug else "nothing in an official run"
    comparison.require("waivers", record.waivers, bool(record.waivers) == debug, must)


def _layer_matrices(sizes: dict[str, int]) -> dict[str, int]:
    """Return the elements of each weight matrix of one layer, by its name."""
    hidden, inner = sizes["hidden_size"], sizes["intermediate_size"]
    head = hidden // sizes["num_attention_heads"]
    queries, keys = head * sizes["num_attention_heads"], head * sizes["num_key_value_heads"]
    return {
        "self_attn.q_proj": hidden * queries,
        "self_attn.k_proj": hidden * keys,
        "self_attn.v_proj": hidden * keys,
        "self_attn.o_proj": queries * hidden,
        "mlp.gate_proj": hidden * inner,
        "mlp.up_proj": hidden * inner,
        "mlp.down_proj": inner * hidden,
    }


def _parameters(sizes: dict[str, int]) -> int:
    hidden, vocabulary = sizes["hidden_size"], sizes["vocab_size"]
    norms = {"input_layernorm": hidden, "post_attention_layernorm": hidden}
    layer = sum(_layer_matrices(sizes).values()) + sum(norms.values())
    outside = {"embed_tokens": vocabulary * hidden, "norm": hidden, "lm_head": hidden * vocabulary}
    return sizes["num_hidden_layers"] * layer + sum(outside.values())


def _training_flops_per_token(sizes: dict[str, int]) -> int:
    """Return FLOPs per token, a multiply-add as two, backward as two forwards."""
    length, hidden = sizes["sequence_length"], sizes["hidden_size"]
    width = hidden // sizes["num_attention_heads"] * sizes["num_attention_heads"]
    scores, mixing = 2 * length * width, 2 * length * width  # Q K^T over the full square; P V
    layer = 2 * sum(_layer_matrices(sizes).values()) + scores + mixing
    forward = sizes["num_hidden_layers"] * layer + 2 * hidden * sizes["vocab_size"]
    return 3 * forward


def compare_ceilings(record: RunRecord, comparison: Comparison) -> None:
    """Compare the attained rate of both ceilings with the products it was measured on."""
    if record.ceilings is None:
        return
    for when, ceiling in (("before", record.ceilings.before), ("after", record.ceilings.after)):
        field = f"ceilings.{when}"
        # A format that a device only emulates is held against FP32 there.
        declared = record.config.precision
        name = declared.name if declared.native else FP32.name
        comparison.expect(f"{field}.precision", ceiling.precision, name)
        rate = _attained(ceiling)
        comparison.expect(f"{field}.flops_per_second", ceiling.flops_per_second, rate)
        tokens = record.workload.tokens_per_step
        comparison.expect(f"{field}.tokens", ceiling.tokens, tokens)
        products = Counter[tuple[str, int, int, int]]()
        for gemm in ceiling.gemms:
            products[gemm.direction, gemm.m, gemm.k, gemm.n] += gemm.count
        comparison.expect(f"{field}.gemms", dict(products), _products(record))
        best = f"{field}.best_product_flops_per_second"
        comparison.expect(best, ceiling.best_product_flops_per_second, _best_product(ceiling))
        most = max((square.at_once for square in ceiling.squares), default=1)
        cores = record.system.cpu.logical_cores or most
        must = f"at most the {cores} cores of the processor at once"
        comparison.require(f"{field}.squares", most, most <= cores, must)


def _products(record: RunRecord) -> dict[tuple[str, int, int, int], int]:
    """Return how often the model multiplies what: (direction, tokens, inputs, outputs) -> count."""
    sizes = {k: v for k, v in record.workload.shapes.items() if isinstance(v, int)}
    if not sizes.keys() >= _NEEDED or sizes["num_attention_heads"] < 1:
        return {}  # not shapes at all, which has been noted already
    hidden, inner = sizes["hidden_size"], sizes["intermediate_size"]
    head = hidden // sizes["num_attention_heads"]
    queries, keys = head * sizes["num_attention_heads"], head * sizes["num_key_value_heads"]
    layer = [(hidden, queries), (hidden, keys), (hidden, keys), (queries, hidden)]
    layer += [(hidden, inner), (hidden, inner), (inner, hidden)]
    layers = sizes["num_hidden_layers"]
    every = Counter({product: n * layers for product, n in Counter(layer).items()})
    every[hidden, sizes["vocab_size"]] += 1
    return {
        (direction, record.workload.tokens_per_step, k, n): count
        for direction in ("forward", "grad_input", "grad_weight")
        for (k, n), count in every.items()
    }


def _best_product(ceiling: Ceiling) -> float | str | None:
    """Return FLOP/s of the fastest product, None in a record of before squares were timed."""
    if not ceiling.squares:
        return None
    cubes = [(square.size, square.size, square.size, square.at_once) for square in ceiling.squares]
    seconds = [square.best_s for square in ceiling.squares]
    cubes += [(gemm.m, gemm.k, gemm.n, 1) for gemm in ceiling.gemms]
    seconds += [gemm.best_s for gemm in ceiling.gemms]
    if min(seconds) <= 0:
        return "positive times"
    works = [2 * m * k * n * copies for m, k, n, copies in cubes]
    return max(work / second for work, second in zip(works, seconds, strict=True))


def _attained(ceiling: Ceiling) -> float | str:
    """Return FLOP/s of all products of ``ceiling``, or what keeps it from having a rate."""
    flops, seconds = 0, 0.0
    for gemm in ceiling.gemms:
        if min(gemm.m, gemm.k, gemm.n, gemm.count) < 1 or gemm.best_s <= 0:
            return f"positive sizes and time of {gemm.name!r}"
        flops += 2 * gemm.m * gemm.k * gemm.n * gemm.count
        seconds += gemm.best_s * gemm.count
    return flops / seconds if seconds > 0 else "at least one product"
