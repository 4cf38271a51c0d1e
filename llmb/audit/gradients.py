"""Judge of E1, E2, E3 and P1 in training: the last step and the isolating probes."""

from __future__ import annotations

from collections.abc import Iterator

from llmb.audit import equivalence, precision
from llmb.audit.bench import (
    GRADIENTS,
    HONEST,
    PRISTINE,
    PROBED,
    REFERENCE,
    STEP_VALUES,
    Bench,
)
from llmb.audit.rule import TRAINING, Rule
from llmb.records.arrays import Arrays
from llmb.records.finding import Finding, Level

_PASSES = (PROBED, GRADIENTS, HONEST, REFERENCE)

E1 = Rule(
    "E1",
    Level.BLOCK,
    "loss, gradients and logits are those of the reference",
    measured="loss and all gradients of a real step, compared with an honest run on the same "
    "device; in 16 bits with two honest runs, the second with its loss in float32: the larger "
    "error counts",
    limit="1.5 times the honest error together, 2 times for each parameter (FP32: 4 and 6; a "
    "parameter of 16 elements: one more; in 8 bits or fewer at most 0.95 of its length, or 1.6 "
    "honest errors if larger; in fewer than 8 bits 2.5 honest errors and 1.25 of its length if the "
    "gradient holds 0.7 of the right one); beyond the honest error 0.2 of the squared length at "
    "most (an honest error of 0.6: 1.25 times); the part of the honest error that is from sums of "
    "micro-batches in 16 bits counts once (256 micro-batches in BF16: 1.2 times in all)",
    cannot_see="errors smaller than the format's own rounding through all layers; steps before the "
    "last (G1 judges drawn steps); steps with dropout on, which G1 judges",
    evidence=(*_PASSES, STEP_VALUES),
    causes=(
        "a fused kernel that adds up in BF16 instead of FP32",
        "a parameter map that reads or writes the wrong half of a fused weight",
    ),
)
E2 = Rule(
    "E2",
    Level.BLOCK,
    "each branch of the model computes what the reference computes",
    measured="bits of every branch and matrix, each measured separately in two isolating probes; "
    "in 16 bits the larger error of two honest runs counts, as in E1",
    limit="0.75 bits below honest (FP32: 2; MX formats and NVFP4: 1, and 0.4 to 0.6 in the mean; "
    "of 16 elements twice as much, and so for a norm's gain if ranks share the model; up to 1.5 "
    "times as much where fewer than 32 elements hold most of a small output's length, in FP16 and "
    "in 8 bits or fewer most of a part's length, or of its layer's output)",
    cannot_see="a plugin that recognises the probes and behaves honestly there; parts with too "
    "large an error even in the host's honest run with the last weights (at most a tenth of all "
    "parts)",
    evidence=_PASSES,
    modes=TRAINING,
    causes=(
        "a kernel that adds up in BF16 instead of FP32, or takes FP8 copies of a matrix",
        "a parameter map that points to the wrong half of a fused weight",
    ),
)
E3 = Rule(
    "E3",
    Level.BLOCK,
    "the model computes from its live weights and its present input",
    measured="the probes write weights, and new tokens into the same memory",
    limit="several bits of every probe, in the median",
    cannot_see="stale weights or tokens outside the probes",
    evidence=_PASSES,
    causes=(
        "a packed or quantised copy of the weights that is not renewed when weights are written",
        "a captured graph that reads its input from memory other than the batch, which is filled "
        "anew",
    ),
)
P1 = Rule(
    "P1",
    Level.BLOCK,
    "effective precision is not below the declared one",
    measured="the widest class reached in the probes, forward and backward",
    limit="as E2",
    cannot_see="TF32 from FP16; MXFP6 (E2M3) from MXFP8; MXFP4 from NVFP4; norms, softmax or "
    "sums in BF16 within a BF16 run",
    evidence=_PASSES,
    causes=(
        "a switch that lets products be narrower than declared, for example allow_tf32 or "
        "reduced-precision reduction (see settings.diff)",
        "a layer that a library replaces by its FP8 version by default",
    ),
)
RULES = (E1, E2, E3, P1)


def _has_probes(reference: Arrays) -> bool:
    """Tell whether the reference computed the probes, which needs the worker's weights."""
    return any(name.startswith(f"{precision.PROBES[0]}/") for name in reference)


def judge(bench: Bench) -> Iterator[Finding]:
    """Yield E3, E1, E2 and P1 of a training step, as far as evidence exists.

    Without a usable honest run, also yield G1 as not observed: ``timed_step`` would need the honest
    run.

    Raises:
        ValueError: the reference lacks a parameter.
    """
    reference = bench.reference
    if not bench.trains or reference is None:
        return
    probed, seen, honest = bench.needed(PROBED), bench.needed(GRADIENTS), bench.needed(HONEST)
    _check_whole(bench, reference)
    if not set(precision.PROBES) <= set(probed.passes) or not _has_probes(reference):
        return
    fmt, paths = bench.facts.precision, bench.paths(GRADIENTS, HONEST, REFERENCE)
    probes = precision.Probes(
        seen, honest, reference, fmt, paths, shared=bench.facts.parallelism.is_shared
    )
    yield probes.live()
    on_host = bench.facts.on_host
    honest_run = equivalence.is_plausible(honest, reference, fmt, on_host=on_host)
    if not (honest_run and probes.honest_is_honest()):
        yield probes.effective()
        judged_here = ("E1", "E2") if bench.every_step else ("E1", "E2", "G1")
        yield from probes.without_yardstick(*judged_here)
        return
    bench.measured = probes.measured()
    steps = bench.read(STEP_VALUES)
    if "live/loss" in reference and steps is not None:
        glanced = None if bench.every_step else steps
        yield equivalence.judge_live(
            probed, glanced, seen, honest, reference, fmt, paths, bench.sums
        )
    yield probes.branches()
    yield probes.effective()


def _check_whole(bench: Bench, reference: Arrays) -> None:
    """Check that the reference of each computed pass covers all parameters.

    Raises:
        ValueError: a parameter would have no reference to be compared with.
    """
    pristine = bench.read(PRISTINE)
    for name in ("live", "branches"):
        if pristine is None or f"{name}/loss" not in reference:
            continue
        for parameter in pristine.parameters:
            if f"{name}/{parameter.name}" not in reference:
                raise ValueError(f"the reference has no {name}/{parameter.name}")
