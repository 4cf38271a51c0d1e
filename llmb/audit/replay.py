"""Rule O2: audited optimizer steps, repeated by torch's own optimizer and by the formula."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterator, Sequence

from llmb.audit.bench import OPTIMIZER, REPLAY, STEP_VALUES, STEPS, Bench
from llmb.audit.rule import TRAINING, Rule
from llmb.records.arrays import Array, Arrays, Same
from llmb.records.audited import AuditedStep, StepsEvidence
from llmb.records.finding import Finding, Level, Status
from llmb.reference.recipe import Optimizer

_KINDS = ("value", "exp_avg", "exp_avg_sq")
#: dtype -> epsilon: numbers closer than this, relative to the larger, differ by one last place.
_EPS = {"float32": 2.0**-23, "bfloat16": 2.0**-7, "float16": 2.0**-10}
#: Share of elements that may differ by one last place: where threads divide a tensor, a kernel's
#: vector remainder may lie at another position than in the replay.
_CLOSE_SHARE = 0.02
_TINY = 2.0**-120
#: Twice the spacing (2^-24) of numbers below float16's normal range.
_SMALLEST = {"float16": 2.0**-23}
#: Distance of each kind from the formula, for one element; arguments: gradient, old and new values.
_Excesses = Callable[[Sequence[float]], tuple[float, ...]]
#: dtype -> epsilon, and the allowed distance from the formula in epsilons of the largest term
#: (docs/adr/0014). FP16 has no limit: squares of gradients underflow, differently in each kernel.
_FORMULA_EPS = {"float32": (2.0**-23, 6.0), "bfloat16": (2.0**-7, 3.0)}
_SINGLE = 2.0**-23


O2 = Rule(
    "O2",
    Level.BLOCK,
    "replayed optimizer steps give the same weights",
    measured="two steps (three, if L1 does not compare every step): 257 elements of each parameter "
    "(64 or more for models with over 128 parameters) replayed by torch's own optimizer and by the "
    "formula of AdamW, with constants in float64 or float32; nothing changes until the next step",
    limit="bit for bit (2 % of elements: one last place); by the formula 6 and 3 eps",
    observer="worker, calibrator, offline",
    cannot_see="elements and steps without a sample (L1 judges moments of each step); the last "
    "elements that fill no vector of 64",
    evidence=(STEPS, STEP_VALUES, REPLAY),
    modes=TRAINING,
    causes=(
        "an own kernel for torch.optim with a different order of operations or an approximate "
        "square root",
        "a library that keeps weights or moments in a different type than their tensors show",
    ),
)
RULES = (O2,)


def judge(bench: Bench) -> Iterator[Finding]:
    """Yield O2.

    Raises:
        ValueError: a step was audited twice.
    """
    steps = bench.needed(STEPS)
    if len({step.index for step in steps.steps}) < len(steps.steps):
        raise ValueError("a step was audited twice")
    workload, stepped = bench.facts.workload, bench.read(OPTIMIZER)
    seen = _whole(bench.needed(STEP_VALUES), "/next/", {})
    yield finding(
        steps,
        seen,
        _whole(bench.needed(REPLAY), "/replayed/", seen),
        bench.constants_of,
        bench.path(STEP_VALUES),
        workload.clip_grad_norm,
        skipped=stepped.skipped if stepped is not None else 0,
    )


def _whole(found: Arrays, what: str, seen: Arrays) -> Arrays:
    """Return ``found`` with numbers where ``what`` is marked as equal to the state after the step.

    Raises:
        LookupError: the array after the step is missing.
    """
    known = {**seen, **found}
    return {
        name: known[name.replace(what, "/after/")] if isinstance(one, Same) else one
        for name, one in found.items()
    }


def finding(
    steps: StepsEvidence,
    seen: Arrays,
    replayed: Arrays,
    constants_of: Callable[[int], Optimizer],
    path: str,
    clip_grad_norm: float | None = None,
    *,
    skipped: int = 0,
) -> Finding:
    """Return O2 from the worker's samples and the honest run's replay of the optimizer.

    ``constants_of`` returns the constants of a step by number. A gradient scaler skipped
    ``skipped`` steps, in which nothing may change.
    """
    constants = constants_of(0)
    kinds = _KINDS[: 1 + constants.moments]
    stepped = [s for s in steps.steps if s.steps_before or not constants.moments]
    left_out = {s.index for s in [s for s in stepped if _is_unchanged(s, kinds, seen)][:skipped]}
    stepped = [s for s in stepped if s.index not in left_out]
    if not stepped:
        return _finding(Status.NOT_OBSERVED, "no optimizer step was looked at", "", path)
    judged = [step for step in stepped if _names(step, kinds, "before", "after") <= set(seen)]
    again = [step for step in judged if _names(step, kinds, "replayed") <= set(replayed)]
    faults = [fault for step in judged for fault in _formula(step, seen, constants_of(step.index))]
    faults += [fault for step in judged for fault in _kept(step, kinds, seen)]
    if clip_grad_norm is not None:
        faults += [fault for step in judged for fault in _clipped(step, seen, clip_grad_norm)]
    if len(judged) < len(stepped):
        faults.append(f"the optimizer does not keep the moments of {constants.name}")
    elements = close = wrong = 0
    for step in again:
        for kind in kinds:
            after = seen[f"{step.index}/after/{kind}"]
            elements += len(after)
            one, more = _differences(step, after, replayed[f"{step.index}/replayed/{kind}"])
            close, wrong = close + one, wrong + more
    measured = (
        f"{wrong + close} of {elements} elements differ from torch's {constants.name} ({wrong} by "
        f"more than a last place), {len(judged)} step{'s' * (len(judged) != 1)}"
    )
    if close > _CLOSE_SHARE * elements:
        wrong += close
    if wrong:
        faults.insert(0, f"{wrong} of {elements} replayed elements differ")
    if faults:
        return _finding(Status.FAIL, "; ".join(faults[:3]), measured, path)
    if not again:
        return _finding(Status.NOT_OBSERVED, "no step could be replayed", measured, path)
    return _finding(Status.PASS, f"torch's {constants.name} gives the same bits", measured, path)


def _kept(step: AuditedStep, kinds: Sequence[str], seen: Arrays) -> Iterator[str]:
    """Yield a sentence for each kind that changed between this step and the next.

    A next step always exists: the stream ends in the pause of a later step.
    """
    for kind in kinds:
        after, later = seen[f"{step.index}/after/{kind}"], seen.get(f"{step.index}/next/{kind}")
        if later is None:
            yield f"{kind} was not looked at again in the step after step {step.index}"
            continue
        changed = sum(a != b for a, b in zip(after, later, strict=True))
        if changed:
            yield f"{changed} elements of {kind} changed between step {step.index} and the next"


def _clipped(step: AuditedStep, seen: Arrays, most: float) -> Iterator[str]:
    """Yield a sentence where gradients were not all scaled by one factor, or by too large a factor.

    The factor is min(1, most / norm) of all gradients. The norm of the sampled gradients is never
    larger than the norm of all gradients. Example: 0.5 for a norm of 2 and a ``most`` of 1.
    """
    before = seen.get(f"{step.index}/replay/unclipped")
    after = seen[f"{step.index}/replay/gradient"]
    if before is None or len(before) != len(after):
        yield f"step {step.index}: the gradients were not read before they were clipped"
        return
    square = math.fsum(a * a for a in before)
    if square == 0:
        return
    factor = math.fsum(a * b for a, b in zip(before, after, strict=True)) / square
    types = (segment.dtype for segment in step.segments for _ in range(segment.states))
    odd = sum(
        not abs(b - factor * a)
        <= 2 * _EPS.get(dtype, 2.0**-7) * abs(a) + _SMALLEST.get(dtype, _TINY)
        for a, b, dtype in zip(before, after, types, strict=True)
    )
    if odd:
        yield f"step {step.index}: {odd} gradients were not scaled as the others were"
    rough = 1 + _EPS["bfloat16"]
    if not 0 < factor <= min(1.0, most / math.sqrt(square)) * rough:
        yield f"step {step.index}: gradients were scaled by {factor:.4g}, not to a norm of {most:g}"


def _is_unchanged(step: AuditedStep, kinds: Sequence[str], seen: Arrays) -> bool:
    before, after = (
        [seen.get(f"{step.index}/{when}/{kind}") for kind in kinds] for when in ("before", "after")
    )
    return before == after and None not in before


def _names(step: AuditedStep, kinds: Sequence[str], *when: str) -> set[str]:
    return {f"{step.index}/{one}/{kind}" for one in when for kind in kinds}


def _differences(step: AuditedStep, one: Array, other: Array) -> tuple[int, int]:
    """Return the number of elements that differ by one last place, and by more."""
    if len(one) != len(other):
        return 0, max(len(one), len(other))
    types = (segment.dtype for segment in step.segments for _ in range(segment.states))
    close = wrong = 0
    for a, b, dtype in zip(one, other, types, strict=True):
        if a == b:
            continue
        if math.isfinite(a - b) and abs(a - b) <= _EPS.get(dtype, 0.0) * max(abs(a), abs(b)):
            close += 1
        else:  # a NaN is never equal
            wrong += 1
    return close, wrong


def _formula(step: AuditedStep, seen: Arrays, constants: Optimizer) -> Iterator[str]:
    """Yield a sentence for each kind with numbers other than the optimizer's formula gives."""
    kinds = _KINDS[: 1 + constants.moments]
    count = (step.steps_before or 0) + 1
    if constants.moments:
        off = _off(step, seen, kinds, _excesses(count, constants))
        if any(off.values()):
            single = _off(step, seen, kinds, _excesses(count, constants, single=True))
            off = min(off, single, key=lambda one: sum(one.values()))
    else:
        off = _off(step, seen, kinds, _excess_of_sgd(constants))
    what = f"not what {constants.name} makes of them"
    for kind, number in off.items():
        if number:
            yield f"step {step.index}: {number} elements of {kind} are {what}"


def _off(
    step: AuditedStep, seen: Arrays, kinds: Sequence[str], excesses: _Excesses
) -> dict[str, int]:
    """Return for each kind the number of elements further off the formula than by rounding."""
    known = (_FORMULA_EPS.get(s.dtype) for s in step.segments for _ in range(s.states))
    arrays = [seen[f"{step.index}/{w}/{k}"] for w in ("before", "after") for k in kinds]
    off = dict.fromkeys(kinds, 0)
    rows = zip(known, seen[f"{step.index}/replay/gradient"], *arrays, strict=True)
    for limits, *numbers in rows:
        if limits is None:
            continue
        eps, allowed = limits
        for kind, excess in zip(kinds, excesses(numbers), strict=True):
            off[kind] += not excess <= allowed * eps
    return off


def _excess_of_sgd(constants: Optimizer) -> _Excesses:
    """Return a function: distance of a value from w - lr (g + decay w), as in torch.optim.SGD.

    The decayed gradient is rounded to the dtype of the weights before the subtraction.
    """

    def excesses(numbers: Sequence[float]) -> tuple[float, ...]:
        gradient, value, new_value = numbers
        update = constants.lr * (gradient + constants.weight_decay * value)
        return (_relative(new_value, value - update, value, update),)

    return excesses


def _excesses(count: float, constants: Optimizer, *, single: bool = False) -> _Excesses:
    """Return a function: relative distances of value and moments from the formula.

    Distances are relative to the largest term, in the step with number ``count`` (from 1). The
    formula is algorithm 2 of Loshchilov and Hutter, "Decoupled Weight Decay Regularization" (ICLR
    2019), as in torch.optim.AdamW. ``single``: the constants are float32, as in torch's fused CUDA
    kernel since pytorch/pytorch#154069. In float32, 1 - 0.999 is smaller by a relative 1.3e-5, and
    1 - 0.999^n is off by a last place of 1.
    """
    (beta1, beta2), rate, eps = constants.betas, constants.lr, constants.eps
    if single:
        beta1, beta2 = _as_single(beta1), _as_single(beta2)
    new1, new2, kept = 1 - beta1, 1 - beta2, 1 - rate * constants.weight_decay
    so_far1, so_far2 = 1 - beta1**count, 1 - beta2**count
    # Relative error of the update from the last places of both powers.
    lost = _SINGLE * (1 / so_far1 + 0.5 / so_far2) if single else 0.0

    def excesses(numbers: Sequence[float]) -> tuple[float, ...]:
        gradient, value, mean, square, new_value, new_mean, new_square = numbers
        of_mean, of_square = new1 * gradient, new2 * gradient * gradient
        # Use the moments as stored: the rounding of the moments is judged separately.
        size = math.sqrt(max(new_square, 0.0) / so_far2) + eps
        update = rate * new_mean / so_far1 / size
        return (
            _relative(new_value, value * kept - update, value, update, lost * abs(update)),
            _relative(new_mean, beta1 * mean + of_mean, mean, of_mean),
            _relative(new_square, beta2 * square + of_square, square, of_square),
        )

    return excesses


def _as_single(value: float) -> float:
    """Return the float32 nearest to ``value``."""
    return float(struct.unpack("f", struct.pack("f", value))[0])


def _relative(found: float, right: float, term: float, other: float, lost: float = 0.0) -> float:
    difference = found - right
    if not math.isfinite(difference):
        return math.inf
    scale = max(abs(found), abs(right), abs(term), abs(other))
    # Below float32's normal range a kernel may flush to zero.
    return max(0.0, abs(difference) - lost) / scale if scale > _TINY else 0.0


def _finding(status: Status, message: str, measured: str, path: str) -> Finding:
    return O2.finding(
        status,
        message,
        observer=O2.observer if status is not Status.NOT_OBSERVED else "none",
        measured=measured or None,
        honest="0 elements",
        limit=O2.limit,
        evidence=(path,),
    )
