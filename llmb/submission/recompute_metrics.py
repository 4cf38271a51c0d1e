"""The second path for ``result.metrics``: every figure of a document, again from bare stamps.

``llmb.measure`` and ``llmb.workloads`` are not used. A record has all metrics that its raw values
give, in order and by these formulas. Records of older rules, of llmb up to ``_LAST_WITHOUT``, may
have no metrics. A record with any metric is checked for all metrics, whatever version made the
record.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from llmb.records.references import is_up_to
from llmb.records.run_record import OLDER_RULES, RepeatTiming, RunRecord
from llmb.submission.comparison import RecordComparison
from llmb.submission.official import OFFICIAL

_LAST_WITHOUT = "0.1.0"
_SIZES = ("hidden_size", "num_hidden_layers", "num_attention_heads", "sequence_length")


@dataclass(frozen=True)
class Expected:
    """The expected value of a metric. Example: ``tflops_per_device`` in TFLOP/s."""

    name: str
    value: float
    unit: str
    formula: str


def compare_metrics(record: RunRecord, comparison: RecordComparison) -> None:
    """Compare every metric of a record; stamps, sizes and work must have been compared before."""
    stored = record.result.metrics
    older = record.rules_version in OLDER_RULES and is_up_to(record.llmb_version, _LAST_WITHOUT)
    if not stored and older:
        return
    if any(mismatch.field.startswith("timing.") for mismatch in comparison.mismatches):
        return  # stamps other than the repeats' own give no metrics
    sizes = {name: record.workload.shapes.get(name) for name in _SIZES}
    whole = all(isinstance(size, int) and size > 0 for size in sizes.values())
    if not whole or record.config.mode.value != record.workload.mode:
        return  # noted in the comparison of sizes and mode
    try:
        expected = list(_expected(record))
    except (OverflowError, ZeroDivisionError):
        comparison.require("result.metrics", len(stored), False, "figures that can be computed")
        return
    names, said = [metric.name for metric in expected], [metric.name for metric in stored]
    comparison.expect("result.metrics", said, names)
    if said != names:
        return
    for n, (metric, one) in enumerate(zip(stored, expected, strict=True)):
        for field in ("value", "unit", "formula"):
            path = f"result.metrics.{n}.{field}"
            comparison.expect(path, getattr(metric, field), getattr(one, field))


def _document(record: RunRecord) -> str | None:
    """Return the short name of the workload's source document, None for a user's own workload."""
    name = record.config.workload
    if record.config.definition is not None or name not in OFFICIAL:
        return None
    for document in ("alcf", "nemo", "nanotron", "litgpt", "gpt-bench"):
        if name.startswith(document + "-"):
            return document
    same = name.startswith(("gpt2-", "llama-2-", "llama-3.1-"))
    return "llm-train-bench" if same else "gpt-bench"


def _expected(record: RunRecord) -> Iterator[Expected]:
    timing, document, mode = record.timing, _document(record), record.config.mode.value
    same_length = not timing.step_tokens
    if mode == "train" and same_length:
        yield from _alcf(record) if document == "alcf" else _work(record, document)
        if record.workload.family == "bert":
            yield from _sequences(record)
        if document == "nemo":
            yield _node_hours(record)
    elif same_length:
        yield Expected(
            "tflops_per_device",
            _tokens_per_device(record) * record.workload.flops_per_token / 1e12,
            "TFLOP/s",
            "tokens/s x FLOPs a token by gemm_full, forward alone / devices / 1e12",
        )
    if mode == "train" and document == "litgpt":
        seconds = 45 * _window_ns(timing) / timing.timed_steps / 1e9
        formula = "(STOP - START) / timed steps x 45"
        yield Expected("time_45_steps_s", seconds, "s", formula)
    if mode == "forward":
        yield from _calls(timing)
    elif mode == "generate":
        yield from _generated(record)


def _window_ns(timing: RepeatTiming) -> int:
    return timing.stop_ns - timing.start_ns


def _window_tokens(record: RunRecord) -> int:
    timing = record.timing
    begin, end = timing.warmup_steps, timing.warmup_steps + timing.timed_steps
    if timing.step_tokens:
        return sum(timing.step_tokens[begin:end])
    return (end - begin) * record.workload.tokens_per_step


def _tokens_per_device(record: RunRecord) -> float:
    """Return tokens per second and device."""
    return _window_tokens(record) * 1e9 / _window_ns(record.timing) / _devices(record)


def _devices(record: RunRecord) -> int:
    mesh = record.config.parallelism
    return mesh.dp_replicate * mesh.dp_shard * mesh.tp * mesh.pp


def _sequences_a_step(record: RunRecord) -> int:
    mesh = record.config.parallelism
    return record.config.batch_size * mesh.dp_replicate * mesh.dp_shard


def _size(record: RunRecord, name: str) -> int:
    size = record.workload.shapes[name]
    return size if isinstance(size, int) else 0


def _work(record: RunRecord, document: str | None) -> Iterator[Expected]:
    """Yield TFLOP/s by the document's FLOP count, and the share of a peak for some documents."""
    counted, name = record.workload.flops_per_token, "gemm_full"
    if document == "llm-train-bench":
        heads = _size(record, "num_attention_heads")
        width = _size(record, "hidden_size") // heads * heads
        square = _size(record, "num_hidden_layers") * width * _size(record, "sequence_length")
        counted, name = 6 * record.workload.parameters + 12 * square, "6n_full"
    elif record.config.workload.startswith("gpt-bench-"):
        name = "megatron"  # without recomputation equal to gemm_full for a GPT-2
    achieved = _tokens_per_device(record) * counted
    formula = f"tokens/s x FLOPs a token by {name} / devices / 1e12"
    yield Expected("tflops_per_device", achieved / 1e12, "TFLOP/s", formula)
    if document == "llm-train-bench" and record.result.mfu is not None:
        share = achieved / record.result.mfu.peak_flops * 100
        formula = "100 x tflops_per_device x 1e12 / datasheet peak"
        yield Expected("mfu_percent", share, "%", formula)


def _alcf(record: RunRecord) -> Iterator[Expected]:
    s, d = _size(record, "sequence_length"), _size(record, "hidden_size")
    layers, b = _size(record, "num_hidden_layers"), _sequences_a_step(record)
    seconds = _window_ns(record.timing) / 1e9 / record.timing.timed_steps
    fom = (6 * s * d**2 + s**2 * d) * b * layers / seconds
    yield Expected("mean_step_time_s", seconds, "s", "T = (STOP - START) / timed steps")
    yield Expected("fom", fom, "MAC/s", "FOM = (6 s d^2 + s^2 d) b L / T")
    yield Expected(
        "tflops_per_device",
        fom / _devices(record) * 12e-12,
        "TFLOP/s",
        "12 x FOM / devices / 1e12: the document's two-matrix feed-forward, no head",
    )
    yield Expected(
        "tflops_per_device_gemm_full",
        _tokens_per_device(record) * record.workload.flops_per_token / 1e12,
        "TFLOP/s",
        "tokens/s x FLOPs a token by gemm_full / devices / 1e12",
    )


def _sequences(record: RunRecord) -> Iterator[Expected]:
    steps = record.timing.timed_steps * 1e9 / _window_ns(record.timing)
    samples = steps * _sequences_a_step(record)
    formula = "sequences a step x timed steps / (STOP - START)"
    yield Expected("samples_per_second", samples, "1/s", formula)
    yield Expected("iterations_per_second", steps, "1/s", "timed steps / (STOP - START)")


def _node_hours(record: RunRecord) -> Expected:
    nodes = (_devices(record) + 3) // 4
    seconds = _window_ns(record.timing) / 1e9 / record.timing.timed_steps
    iterations = 100_000 * 4096 / _sequences_a_step(record)
    return Expected(
        "node_hours_per_100k_steps",
        nodes * iterations * seconds / 3600,
        "node h",
        "nodes x 100000 x (4096 / global batch) / iterations_per_second / 3600, "
        "nodes = devices / 4 rounded up",
    )


def _between_fences(timing: RepeatTiming) -> Iterator[tuple[int, int, int]]:
    """Yield (first step, step after the last, nanoseconds) of each part of the window."""
    begin, end = timing.warmup_steps, timing.warmup_steps + timing.timed_steps
    fences = zip(timing.fence_steps, timing.fence_ns, strict=True)
    inside = [fence for fence in fences if begin <= fence[0] <= end]
    for (step, ns), (later, later_ns) in pairwise(inside):
        yield step, later, later_ns - ns


def _calls(timing: RepeatTiming) -> Iterator[Expected]:
    calls = sorted(ns / 1e9 / (b - a) for a, b, ns in _between_fences(timing))
    what = "time between two consecutive fences of the window, a call"
    yield Expected("best_s", calls[0], "s", f"least {what}")
    yield Expected("median_s", statistics.median(calls), "s", f"median {what}")


def _generated(record: RunRecord) -> Iterator[Expected]:
    timing, sequences = record.timing, _sequences_a_step(record)
    whole, decoding = [], []
    for a, b, ns in _between_fences(timing):
        tokens = (b - a) * record.workload.tokens_per_step
        if timing.step_tokens:
            tokens = sum(timing.step_tokens[a:b])
        whole.append(tokens * 1e9 / ns)
        left, left_ns = tokens - (b - a) * sequences, ns - sum(timing.prefill_ns[a:b])
        if left > 0 and left_ns > 0:
            decoding.append(left * 1e9 / left_ns)
    name, unit = "generated_tokens_per_second", "tokens/s"
    most = "most new tokens a second of a step, prefill included"
    yield Expected(name, max(whole), unit, most)
    overall = _window_tokens(record) * 1e9 / _window_ns(timing)
    yield Expected(
        f"{name}_overall", overall, unit, "new tokens of all timed steps / (STOP - START)"
    )
    if not timing.prefill_ns:
        return
    if decoding:
        formula = "most of (new tokens - one a sequence) / (time of a step - its prefill)"
        yield Expected(f"{name}_without_prefill", max(decoding), unit, formula)
    end = timing.warmup_steps + timing.timed_steps
    middle = statistics.median(timing.prefill_ns[timing.warmup_steps : end]) / 1e9
    yield Expected("prefill_s", middle, "s", "median prefill of the timed steps")
