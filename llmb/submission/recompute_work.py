"""The second path for work: shapes, parameters, FLOPs, class of the run, attainable ceiling.

The official sizes and formulas are written out again here; ``llmb.workloads`` is not used.
"""

from __future__ import annotations

from collections import Counter
from typing import cast

from llmb.config import FP32, AuditMode
from llmb.records.ceiling import Ceiling
from llmb.records.run_record import RunRecord
from llmb.submission.comparison import RecordComparison
from llmb.submission.official import (
    DEFAULTS,
    FIXED,
    OFFICIAL,
    Official,
    Shapes,
    parameter_count,
    products_of,
)

_OFFICIAL_TIMED_STEPS, _OFFICIAL_TIMED_CALLS = 50, 10
_LEAST_WINDOW_NS, _MOST_WARMUP = 5_000_000_000, 20
_MOST_TIMED_STEPS = 60
#: Rules 3: training with more timed steps was official in windows of at most so many nanoseconds.
_FEW_NS = 10_000_000_000
#: Tokens of the prompt, and new tokens.
_OFFICIAL_SAMPLE = (6, 200)


def compare_workload(record: RunRecord, comparison: RecordComparison) -> None:
    """Compare shapes, parameters, FLOPs and tokens per step, and the class of the run."""
    official = _official(record)
    if official is None:
        known = f"one of {', '.join(OFFICIAL)}, or a definition of a family"
        comparison.expect("config.workload", record.config.workload, known)
        return
    facts = record.workload
    comparison.expect("workload.name", facts.name, record.config.workload)
    comparison.expect("workload.family", facts.family, official.family)
    if facts.family != official.family:
        return
    constants = tuple(vars(facts.optimizer).values())
    comparison.expect("workload.optimizer", constants, official.optimizer)
    comparison.expect("workload.clip_grad_norm", facts.clip_grad_norm, official.clip_grad_norm)
    overrides: dict[str, int] = dict(record.config.shape_overrides.items())
    shapes: Shapes = {**official.shapes, **overrides}
    if "num_attention_heads" in overrides and "num_key_value_heads" in official.shapes:
        grouped = _whole(official.shapes, "num_attention_heads")
        grouped = max(1, grouped // _whole(official.shapes, "num_key_value_heads"))
        shapes["num_key_value_heads"] = max(1, overrides["num_attention_heads"] // grouped)
    comparison.expect("workload.shapes", facts.shapes, shapes)
    sizes = {name: size for name, size in shapes.items() if isinstance(size, int)}
    positive = all(size > 0 for name, size in sizes.items() if name != "padding_idx")
    if comparison.require("config.shape_overrides", dict(overrides), positive, "at least 1 each"):
        count = parameter_count(facts.family, sizes)
        comparison.expect("workload.parameters", facts.parameters, count)
        flops = _flops_per_token(record, sizes)
        comparison.expect("workload.flops_per_token", facts.flops_per_token, flops)
    _compare_tokens(record, sizes["sequence_length"], comparison)
    parts = record.config.accumulate
    must = f"a divisor of the batch size {record.config.batch_size}"
    comparison.require("config.accumulate", parts, record.config.batch_size % parts == 0, must)
    _compare_choices(record, comparison)
    _compare_class(record, official, comparison)


def _compare_choices(record: RunRecord, comparison: RecordComparison) -> None:
    """Compare choices of the configuration that only go together with other choices."""
    config = record.config
    mixed, prompt = config.mixed_precision, config.prompt_tokens
    widened = not mixed or config.precision.master_weights
    comparison.require("config.mixed_precision", mixed, widened, "false without float32 weights")
    generates = not prompt or config.mode.value == "generate"
    comparison.require("config.prompt_tokens", prompt, generates, "empty, but in mode generate")


def _sequences(record: RunRecord) -> int:
    """Return the sequences per step on all devices together."""
    mesh = record.config.parallelism
    return record.config.batch_size * mesh.dp_replicate * mesh.dp_shard


def _compare_tokens(record: RunRecord, length: int, comparison: RecordComparison) -> None:
    """Compare the tokens per step: every position, or in mode generate every new token."""
    tokens, config = record.workload.tokens_per_step, record.config
    generates = config.mode.value == "generate"
    new, prompt = config.new_tokens, config.prompt_length
    given = (new is not None, prompt is not None, config.generate_scope is not None)
    must = "given in mode generate, and only there"
    if not comparison.require("config.new_tokens", new, given == (generates,) * 3, must):
        return
    comparison.expect("workload.tokens_per_step", tokens, _sequences(record) * (new or length))
    if new is not None and prompt is not None:
        must = f"with a prompt of {prompt} at most {length} tokens"
        comparison.require("config.new_tokens", new, prompt + new <= length, must)


def _official(record: RunRecord) -> Official | None:
    """Return the workload of ``record``, by name, or by a user's own definition."""
    definition = record.config.definition
    if definition is None:
        return OFFICIAL.get(record.config.workload)
    family = str(definition.get("family"))
    own = {name: size for name, size in definition.items() if name != "family"}
    if family not in DEFAULTS or not own.keys() <= DEFAULTS[family].keys():
        return None
    if record.config.workload in OFFICIAL:
        return None
    shapes = {name: own.get(name, size) for name, size in DEFAULTS[family].items()}
    if not all(_is_size(name, shapes[name], usual) for name, usual in DEFAULTS[family].items()):
        return None
    return Official(family, cast("Shapes", shapes), FIXED)


def _is_size(name: str, size: int | float | str | None, usual: int | float | None) -> bool:
    """Tell whether ``size`` is valid, if the family's own default is ``usual``."""
    if name == "padding_idx":
        return size is None or isinstance(size, int)
    whole = isinstance(usual, int)
    return isinstance(size, int) and size > 0 if whole else isinstance(size, (int, float))


def _whole(shapes: Shapes, name: str) -> int:
    size = shapes[name]
    return size if isinstance(size, int) else 0


def _compare_class(record: RunRecord, official: Official, comparison: RecordComparison) -> None:
    config, shapes = record.config, official.shapes
    changed = any(shapes.get(name) != size for name, size in config.shape_overrides.items())
    trains = config.mode.value == "train"
    own = (config.definition, config.weights, config.data)
    other = any(one is not None for one in own)
    other = other or (config.dynamic and not config.workload.startswith("litgpt-"))
    if config.mode.value == "generate":
        other = other or (config.prompt_length, config.new_tokens) != _OFFICIAL_SAMPLE
    least = _OFFICIAL_TIMED_STEPS if trains else _OFFICIAL_TIMED_CALLS
    other = other or config.nonce is not None or config.constant_rate
    other = other or config.audit is AuditMode.OFF
    debug = changed or other or config.timed_steps < least
    if record.rules_version != "2":  # rules 2 had no limits of window and warm-up
        windows = [repeat.stop_ns - repeat.start_ns for repeat in record.timing.repeats]
        few_ns = _FEW_NS if record.rules_version == "3" else 0
        debug = (
            debug
            or min(windows, default=0) < _LEAST_WINDOW_NS
            or config.warmup_steps > _MOST_WARMUP
            or (trains and config.timed_steps > _MOST_TIMED_STEPS and max(windows) > few_ns)
        )
    comparison.expect("class", record.class_, "debug" if debug else "official")
    must = "the reasons why this is a debug run" if debug else "nothing in an official run"
    comparison.require("waivers", record.waivers, bool(record.waivers) == debug, must)


def _flops_per_token(record: RunRecord, sizes: dict[str, int]) -> int:
    """Return FLOPs per token, a multiply-add as two; a backward pass counts as two forwards."""
    length, heads = sizes["sequence_length"], sizes["num_attention_heads"]
    width = heads * sizes.get("head_dim", sizes["hidden_size"] // heads)
    scores, mixing = 2 * length * width, 2 * length * width  # Q K^T over the full square; P V
    found = products_of(record.workload.family, sizes)
    products = 2 * sum(k * n * count for (k, n), count in found.items())
    if record.config.mode.value == "generate":  # attention on the cache is not counted
        return products
    passes = 3 if record.config.mode.value == "train" else 1
    return passes * (products + sizes["num_hidden_layers"] * (scores + mixing))


def compare_ceilings(record: RunRecord, comparison: RecordComparison) -> None:
    """Compare the attained rate of both ceilings with the measured products."""
    if record.ceilings is None:
        return
    for when, ceiling in (("before", record.ceilings.before), ("after", record.ceilings.after)):
        field = f"ceilings.{when}"
        # A format with FP32's products, or an emulated format, is compared with FP32.
        declared = record.config.precision
        fp32 = declared.products == FP32.name or not declared.native
        name = FP32.name if fp32 else declared.name
        comparison.expect(f"{field}.precision", ceiling.precision, name)
        rate = _attained(ceiling)
        comparison.expect(f"{field}.flops_per_second", ceiling.flops_per_second, rate)
        comparison.expect(f"{field}.tokens", ceiling.tokens, _rows(record))
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
    """Return the model's products: (direction, tokens, inputs, outputs) -> count."""
    sizes = {k: v for k, v in record.workload.shapes.items() if isinstance(v, int)}
    family = record.workload.family
    needed = {k for k, v in DEFAULTS.get(family, {}).items() if isinstance(v, int)}
    if not needed or not sizes.keys() >= needed - {"padding_idx"}:
        return {}  # invalid shapes were noted before
    if sizes["num_attention_heads"] < 1:
        return {}
    rows = _rows(record)
    trains = record.config.mode.value == "train"
    return {
        (direction, rows, k, n): count
        for direction in ("forward", *(("grad_input", "grad_weight") if trains else ()))
        for (k, n), count in products_of(family, sizes).items()
    }


def _rows(record: RunRecord) -> int:
    """Return the model's tokens per call; in mode generate, one token of each sequence."""
    if record.config.mode.value == "generate":
        return record.config.batch_size
    mesh = record.config.parallelism
    parts = record.config.accumulate * mesh.dp_replicate * mesh.dp_shard
    return record.workload.tokens_per_step // parts


def _best_product(ceiling: Ceiling) -> float | str | None:
    """Return FLOP/s of the fastest product, None in a record older than the timing of squares."""
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
    """Return FLOP/s of all products of ``ceiling``, or the reason for a missing rate."""
    flops, seconds = 0, 0.0
    for gemm in ceiling.gemms:
        if min(gemm.m, gemm.k, gemm.n, gemm.count) < 1 or gemm.best_s <= 0:
            return f"positive sizes and time of {gemm.name!r}"
        flops += 2 * gemm.m * gemm.k * gemm.n * gemm.count
        seconds += gemm.best_s * gemm.count
    return flops / seconds if seconds > 0 else "at least one product"
