"""Rule K1: a run is not faster than the device can be.

Two upper bounds apply to model FLOP/s. A datasheet's dense peak comes from the plugin, which may
overstate the peak: exceeding the peak convicts, staying below proves nothing. The best rate of any
product timed by ``ceilings`` is llmb's own measurement: a run must stay below this rate to pass
(docs/adr/0012).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields

from pydantic import TypeAdapter, ValidationError

from llmb.audit.bench import Bench
from llmb.audit.quiet import disturbances
from llmb.audit.rule import Rule
from llmb.config import Mode
from llmb.families import SHAPES
from llmb.measure.statistics import window_tokens
from llmb.records.ceiling import Ceilings
from llmb.records.finding import Finding, Level, Status
from llmb.records.run_record import RepeatTiming, WorkloadFacts
from llmb.records.system import SystemDescription
from llmb.reference.shapes import Shape
from llmb.workloads.arithmetic import least_flops_per_token

#: Bits of the narrowest operands in products timed by ``llmb.measure.ceiling``.
_TIMED_BITS = 8
_CERTAIN = 1.05  # times the ceiling
_STEADY = 0.10  # relative difference of the ceilings before and after the run
K1 = Rule(
    "K1",
    Level.BLOCK,
    "the run is not faster than the device can be",
    measured="model FLOP/s of the fastest repeat, causal attention counted",
    limit="below the datasheet's peak, and below the best product measured on the device before "
    "and after the run",
    cannot_see="a device's ceiling lowered by its own plugin",
    observer="supervisor, calibrator",
    per_run=True,
    causes=(
        "a backend with the peak_flops of a slower variant of the device",
        "a ceiling measured while a second program used the device",
    ),
)
RULES = (K1,)
_MAY_BE_ZERO = ("padding_idx", "dropout")


def judge(bench: Bench) -> Iterator[Finding]:
    """Yield K1; not applicable to a debug run in a format the device only emulates."""
    facts = bench.facts
    if facts.precision.is_slow and facts.ceilings is None and facts.is_debug:
        why = f"the device only emulates {facts.precision.name}: no ceiling of a debug run"
        yield K1.unjudged(Status.NOT_APPLICABLE, why)
        return
    yield finding(
        facts.repeats,
        facts.workload,
        facts.parallelism.world_size,
        facts.ceilings,
        facts.peak_flops,
        facts.system,
        facts.precision.computing.bits,
    )


def finding(
    repeats: Sequence[RepeatTiming],
    workload: WorkloadFacts,
    world_size: int,
    ceilings: Ceilings | None,
    peak_flops: float | None,
    system: SystemDescription,
    bits: int = 8,
) -> Finding:
    """Return K1 for the fastest of ``repeats``.

    ``peak_flops`` is the datasheet's dense peak of one device in the declared precision, in FLOP/s;
    None: the plugin states no peak. ``bits`` is the width of the format in which products compute,
    such as 16 for BF16.
    """
    rate = _fastest(repeats, workload, world_size)
    status, message = _verdict(rate, peak_flops, ceilings, system, bits)
    best = _best(ceilings) if ceilings is not None else ()
    return K1.finding(
        status,
        message,
        measured=None if rate is None else f"{rate / 1e12:.4g} TFLOP/s, causal attention counted",
        honest=f"at most {max(best) / 1e12:.4g} TFLOP/s (best product)" if best else None,
        limit=_limit(peak_flops),
        basis="calibrated" if peak_flops is None else "fixed",
    )


def shape_of(workload: WorkloadFacts) -> Shape | None:
    """Return the shape in ``workload``; None: the shape is incomplete or impossible."""
    kind = SHAPES.get(workload.family)
    if kind is None or workload.shapes.keys() != {field.name for field in fields(kind)}:
        return None
    try:
        shape: Shape = TypeAdapter(kind).validate_python(dict(workload.shapes))
    except ValidationError:
        return None
    sizes = (value for name, value in vars(shape).items() if name not in _MAY_BE_ZERO)
    return shape if all(size > 0 for size in sizes) else None


def _fastest(
    repeats: Sequence[RepeatTiming], workload: WorkloadFacts, world_size: int
) -> float | None:
    """Return model FLOP/s of one device in the fastest repeat; None: not enough data."""
    shape = shape_of(workload)
    windows = [
        (window_tokens(timing, workload.tokens_per_step), timing.stop_ns - timing.start_ns)
        for timing in repeats
    ]
    if shape is None or not windows or world_size < 1 or any(ns <= 0 for _, ns in windows):
        return None
    dynamic = any(timing.step_tokens for timing in repeats)
    flops = least_flops_per_token(Mode(workload.mode), shape, dynamic=dynamic)
    return max(tokens / (ns / 1e9) for tokens, ns in windows) * flops / world_size


def _best(ceilings: Ceilings) -> tuple[float, ...]:
    """Return the best rate of any product, before and after; older records may lack either rate."""
    rates = (c.best_product_flops_per_second for c in (ceilings.before, ceilings.after))
    return tuple(rate for rate in rates if rate is not None)


def _verdict(
    rate: float | None,
    peak_flops: float | None,
    ceilings: Ceilings | None,
    system: SystemDescription,
    bits: int,
) -> tuple[Status, str]:
    if rate is None:
        return Status.NOT_OBSERVED, "the record's windows and shapes give no rate of work"
    if peak_flops is not None and rate > peak_flops:
        return Status.FAIL, f"faster than the datasheet's {peak_flops / 1e12:.4g} TFLOP/s"
    if ceilings is None:
        return Status.NOT_OBSERVED, "the device's ceiling was not measured"
    best = _best(ceilings)
    if not best:
        return _by_the_models_products(rate, ceilings)
    bound = max(best)
    if rate <= bound:
        return Status.PASS, f"{rate / bound:.0%} of the rate of the device's best product"
    over = f"{rate / bound:.2f} times the rate of the device's best product"
    if bits < _TIMED_BITS:  # a device may multiply narrower operands two or three times as fast
        return (
            Status.NOT_OBSERVED,
            f"{over}, which has {_TIMED_BITS} bits: none in {bits} was timed",
        )
    if peak_flops is not None:
        return Status.FLAG, f"{over}, and below the datasheet's peak"
    doubts = list(disturbances(system))
    if len(best) < 2 or min(best) < (1 - _STEADY) * bound:
        doubts.append("another ceiling after the run than before it")
    if doubts:
        return Status.FLAG, f"{over}, on a host that may have been disturbed: {'; '.join(doubts)}"
    return Status.FAIL if rate > _CERTAIN * bound else Status.FLAG, over


def _by_the_models_products(rate: float, ceilings: Ceilings) -> tuple[Status, str]:
    """Judge a record in which only products of the model's shapes were timed.

    A vendor's library may honestly be faster than torch at these shapes: this bound can only
    acquit.
    """
    attained = max(ceilings.before.flops_per_second, ceilings.after.flops_per_second)
    if rate <= attained:
        return Status.PASS, "slower than the model's own products alone"
    return Status.NOT_OBSERVED, "only products of the model's own shapes were timed"


def _limit(peak_flops: float | None) -> str:
    if peak_flops is None:
        return f"{_CERTAIN} of the best product on a steady host; above it a flag"
    return f"{peak_flops / 1e12:.4g} TFLOP/s (datasheet); above the best product a flag"
