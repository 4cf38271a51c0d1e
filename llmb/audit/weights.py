"""Rule W1: after post-processing every parameter exists, is trained, and is pristine."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from llmb.audit.bench import PRISTINE, PROBED, WEIGHTS, Bench
from llmb.audit.rule import Rule
from llmb.config import Precision
from llmb.records.audited import LEAST_SIDE, PristineDigest, PristineEvidence
from llmb.records.evidence import WeightsEvidence
from llmb.records.finding import Finding, Level, Status
from llmb.reference.recipe import Optimizer

W1 = Rule(
    "W1",
    Level.BLOCK,
    "weights after post-processing are the pristine ones, bit for bit",
    measured="digests after post-processing, compared with digests that a process without the "
    "plugin makes from the seed; the distance that each weight has moved by the end. Three more, "
    "if L1 does not compare every step: the share of each parameter that needs no work in judged "
    "steps, such as rows that are zero or equal to others; the share of each matrix's rows and "
    "columns whose right gradient in a judged step is below 0.03 of the usual; the distance that "
    "each weight has moved by a judged step",
    limit="the same bits; no further than AdamW can move a weight; no parameter with 0.05 of idle "
    "rows, directions or gains more than at first, and two more; no matrix with more than 0.3 of "
    "such rows or columns, and 1.35 by the root of the shorter side (768: 0.35)",
    cannot_see="weights swapped between two audited steps and put back: L1 compares these steps, "
    "or G1 finds wrong gradients in a judged step among them",
    observer="worker, verifier",
    evidence=(WEIGHTS,),
    causes=(
        "a fused or repacked weight without llmb_parameter_map, or a map that reads the wrong half "
        "of a fused weight",
        "post-processing that casts weights to a different type and back, or initialises a module "
        "again",
    ),
)
RULES = (W1,)
#: Largest share of a parameter that needs no work in a judged step, beyond that of the first
#: weights, and directions more: a small matrix may have a weak one by chance. Honest trainings had
#: 0.026 at most with a side of 64, after up to 1,600 steps or at a constant rate of 1e-3, and 0.001
#: with 768.
MOST_IDLE, MORE_DIRECTIONS = 0.05, 2
#: Largest share of the rows, or columns, of a judged step's gradient that are far below usual; and
#: a share more, to be divided by the root of the shorter side. GELU puts features to sleep where
#: few tokens have a loss: 0.11 of nemo-bert-base's rows (one sequence), 0.01 in GPT-2, 0 in Llama.
MOST_ASLEEP, MORE_ASLEEP = 0.3, 1.35
_LARGEST_WEIGHT = 1.0  # a gain; matrices are N(0, 0.02)
#: One last place of the largest weight, in the dtype of stored weights.
_ROUNDING = {"float32": 2.0**-22, "float64": 2.0**-51, "float16": 2.0**-9, "bfloat16": 2.0**-6}
_BYTES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}


def judge(bench: Bench) -> Iterator[Finding]:
    """Yield W1."""
    weights, pristine, probed = bench.needed(WEIGHTS), bench.read(PRISTINE), bench.read(PROBED)
    steps = probed.last_step if probed and bench.trains else 0
    every = [bench.constants_of(step) for step in range(steps)]
    where = bench.path(WEIGHTS)
    found = finding(weights, pristine, bench.facts.precision, every, where, trains=bench.trains)
    if found.status is Status.PASS and pristine is not None:
        found = _too_far(bench, pristine) or _idle(bench, pristine) or found
    yield found


def finding(
    weights: WeightsEvidence,
    pristine: PristineEvidence | None,
    precision: Precision,
    steps: Sequence[Optimizer],
    path: str,
    *,
    trains: bool,
) -> Finding:
    """Return W1 from the worker's weights and the reference run's weights made from the seed.

    ``trains``: the run trains. Without training weights need no gradients, and may be buffers.
    ``steps`` are the constants of the optimizer's steps between start and end. AdamW cannot move a
    weight further than a bound from these constants. SGD can: the move grows with the gradient.
    """
    faults = _presence(weights, trains=trains)
    if pristine is not None:
        faults += _form(weights, pristine, precision, trains=trains) + _values(weights, pristine)
        ends = {p.name: p.largest_move for p in pristine.parameters if p.largest_move is not None}
        faults += _moves(ends, precision, steps)
    elif not faults:
        return W1.unobserved("no verifier has made the pristine weights from the seed", (path,))
    count = len(weights.processed)
    return W1.finding(
        Status.FAIL if faults else Status.PASS,
        "; ".join(faults[:3]) if faults else "every weight is the pristine one",
        measured=f"{count} parameters, {weights.canonical_elements or 0:,} elements",
        honest=f"{len(weights.pristine)} parameters made from the seed",
        limit="bit for bit, in the type they are stored in",
        evidence=(path,),
    )


def _too_far(bench: Bench, pristine: PristineEvidence) -> Finding | None:
    """Return W1 if weights of a judged step are further off than AdamW can have moved them."""
    for number, stop in enumerate(bench.timing.stops if bench.trains else ()):
        steps = [bench.constants_of(step) for step in range(stop.step + 1)]
        moved = {p.name: p.moves[number] for p in pristine.parameters if number < len(p.moves)}
        if faults := _moves(moved, bench.facts.precision, steps):
            return W1.finding(
                Status.FAIL,
                f"in step {stop.step} {faults[0]}",
                measured=f"{max(moved.values()):.3g}",
                limit="no further than AdamW can move a weight",
                evidence=bench.paths(PRISTINE),
            )
    return None


def _idle(bench: Bench, pristine: PristineEvidence) -> Finding | None:
    """Return W1 if weights of judged steps need less work, or if nobody has looked at them."""
    stops, evidence = [stop.step for stop in bench.timing.stops], bench.paths(PRISTINE)
    large = [one for one in pristine.parameters if min(one.shape, default=0) >= LEAST_SIDE]
    if bench.every_step or not stops or not large:
        return None
    looked_at = [one for one in pristine.parameters if one.idle]
    if not looked_at or any(len(one.idle) != len(stops) for one in looked_at):
        return W1.unobserved("nobody has looked at the weights of the judged steps", evidence)
    worst = max(looked_at, key=lambda one: max(one.idle) - _most_idle(one))
    share, most = max(worst.idle), _most_idle(worst)
    if share <= most:
        return _asleep(bench, pristine, stops)
    return W1.finding(
        Status.FAIL,
        f"in step {stops[worst.idle.index(share)]} {share:.2f} of {worst.name} is idle, such as "
        "rows that are zero or equal to others",
        measured=f"{share:.2f} of {worst.name}",
        limit=f"{most:.2g} more than at first",
        evidence=evidence,
    )


def _asleep(bench: Bench, pristine: PristineEvidence, stops: Sequence[int]) -> Finding | None:
    """Return W1 if most of a matrix has hardly any gradient in a judged step."""
    evidence = bench.paths(PRISTINE)
    matrices = [p for p in pristine.parameters if len(p.shape) == 2 and min(p.shape) >= LEAST_SIDE]
    looked_at = [one for one in matrices if len(one.asleep) == len(stops)]
    if matrices and not looked_at:
        return W1.unobserved("nobody has looked at the gradients of the judged steps", evidence)
    worst = max(looked_at, key=lambda one: max(one.asleep) - _most_asleep(one), default=None)
    if worst is None or max(worst.asleep) <= _most_asleep(worst):
        return None
    share = max(worst.asleep)
    return W1.finding(
        Status.FAIL,
        f"in step {stops[worst.asleep.index(share)]} {share:.2f} of the rows or columns of "
        f"{worst.name} have hardly any gradient, such as features whose activation is flat",
        measured=f"{share:.2f} of {worst.name}",
        limit=f"{_most_asleep(worst):.2g}",
        evidence=evidence,
    )


def _most_asleep(one: PristineDigest) -> float:
    return MOST_ASLEEP + MORE_ASLEEP / math.sqrt(min(one.shape))


def _most_idle(one: PristineDigest) -> float:
    return MOST_IDLE + MORE_DIRECTIONS / min(one.shape)


def _presence(weights: WeightsEvidence, *, trains: bool) -> list[str]:
    faults = []
    for names, what in (
        (weights.missing, "cannot be found after post-processing"),
        (weights.foreign, "are not the model's own and not declared as padding"),
        (weights.frozen if trains else (), "are not trained"),
    ):
        if names:
            faults.append(f"{len(names)} parameters {what}: {', '.join(names[:3])}")
    stored, canonical = weights.stored_elements, weights.canonical_elements
    if stored is None or canonical is None or weights.padding:
        return faults
    if stored > canonical or (trains and stored < canonical):  # buffers are not counted
        faults.append(
            f"{stored:,} elements are stored for {canonical:,} canonical ones, and no padding is "
            "declared"
        )
    return faults


def _form(
    weights: WeightsEvidence, pristine: PristineEvidence, precision: Precision, *, trains: bool
) -> list[str]:
    shapes = {p.name: p.shape for p in pristine.parameters}
    least = _BYTES.get(precision.stored_dtype, 0)
    faults = []
    for found in weights.processed:
        if found.name not in shapes:
            faults.append(f"{found.name} is no parameter of the model")
        elif found.shape != shapes[found.name]:
            faults.append(
                f"{found.name} has shape {list(found.shape)}, not {list(shapes[found.name])}"
            )
        if _BYTES.get(found.dtype, 0) < least:
            faults.append(
                f"{found.name} is stored as {found.dtype}, narrower than {precision.stored_dtype}"
            )
        if trains and not found.requires_grad:
            faults.append(f"{found.name} is not trained")
    return faults


def _values(weights: WeightsEvidence, pristine: PristineEvidence) -> list[str]:
    right = {p.name: p.sha256 for p in pristine.parameters}
    changed = [p.name for p in weights.processed if right.get(p.name, p.sha256) != p.sha256]
    lost = sorted(set(right) - {p.name for p in weights.processed})
    faults = []
    if changed:
        faults.append(f"{len(changed)} parameters have other values: {', '.join(changed[:3])}")
    if lost:
        faults.append(f"{len(lost)} parameters are gone: {', '.join(lost[:3])}")
    return faults


def _moves(
    moved: Mapping[str, float], precision: Precision, steps: Sequence[Optimizer]
) -> list[str]:
    """Return a fault where weights have ``moved`` further than AdamW can move weights.

    One step moves a weight by at most lr, or by lr (1 - beta1) / sqrt(1 - beta2) where larger
    (Kingma and Ba, "Adam", ICLR 2015, section 2.1), plus the weight decay, plus rounding: to 16
    bits at most as far again. Example: lr = 1e-4, beta1 = 0.9, beta2 = 0.999: at most 3.2e-4 before
    decay and rounding.
    """
    # No bound exists where squares of gradients underflow (FP16), or without moments to divide by.
    if precision.stored_dtype == "float16" or not all(one.moments for one in steps):
        return []
    limit = 2 * sum(map(_furthest, steps)) + _ROUNDING.get(precision.stored_dtype, 2.0**-7)
    far = [name for name, move in moved.items() if not move <= limit]
    if not far:
        return []
    return [
        f"{len(far)} parameters moved further than {len(steps)} steps of AdamW can take them: "
        f"{far[0]} by {moved[far[0]]:.3g} (limit {limit:.3g})"
    ]


def _furthest(constants: Optimizer) -> float:
    """Return the largest move of a weight in one step of AdamW, weight decay included."""
    beta1, beta2 = constants.betas
    most = max(1.0, (1 - beta1) / math.sqrt(1 - beta2))
    return constants.lr * (most + constants.weight_decay * _LARGEST_WEIGHT)
