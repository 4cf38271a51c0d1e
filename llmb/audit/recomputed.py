"""Distances between a bundle's evidence and a recomputation from config, seed and nonce.

Distances are defined as in the rules: L1 for gradients, moments and logits; E1 for the last step
and the loss. Limits come from the reference and an honest run on this host: no number in the bundle
sets a limit. docs/adr/0054 lists the limits, and why the limits hold on other machines.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from llmb.audit import canonical_rows, equivalence, ledger
from llmb.audit.bench import GRADIENTS, LEDGER, PRISTINE, VALUES, WEIGHTS, Bench
from llmb.audit.call_by_call import CallByCall
from llmb.audit.compared_rows import ComparedRows, Rows, gaps_of_calls, stored_calls
from llmb.audit.distance import Gap, gap, gaps, total
from llmb.audit.honest_error import honest_error, times_of
from llmb.audit.precision import ways
from llmb.audit.rule import Evidence
from llmb.audit.step_by_step import OF_A_STEP, StepByStep
from llmb.records import arrays, audited, evidence
from llmb.records.arrays import Array, Arrays
from llmb.records.audited import PristineEvidence
from llmb.records.finding import Status

#: Factor on L1's limits, for other processors, kernels and orders of sums.
_ACROSS = 2.0
#: Extra factor where few steps were recomputed: each parameter has few samples (rule L1: 1.5).
_FEW_STEPS, _OF_FEW = 16, 1.5
#: Largest relative distance of a pass with weights from another step of the run, and of a sample of
#: weights. Weights from another seed are 1.4 off.
_OF_OTHERS, _OF_WEIGHTS = 0.75, 0.4

FENCES = Evidence(evidence.FENCES, arrays.read)


@dataclass(frozen=True)
class Made:
    """Recomputed values of one repeat."""

    #: Row of each recomputed step or call, ``[steps * elements]``; None: nothing was recomputed.
    rows: Array | None
    #: Loss of each step, and samples of the weights at fences, ``[fences * samples]``.
    losses: Array
    samples: Array
    #: Reference of the passes after the last step, and an honest run on this host.
    reference: Arrays
    pristine: PristineEvidence
    #: Number of recomputed steps, and whether all steps were: passes then use the last weights.
    steps: int
    complete: bool
    #: Fences with samples, as the number of steps before each fence.
    fences: tuple[int, ...]
    #: Number of steps after which honest runs have drifted apart, and whether the passes' weights
    #: are still near the run's weights: near enough for the probes, and for the last step.
    stable: int
    near: bool
    near_the_last: bool
    #: Numbers of the calls in the rows.
    calls: tuple[int, ...] = ()


@dataclass(frozen=True)
class Compared:
    """One kind of evidence against the recomputation: relative distance and limit."""

    what: str
    measured: float
    limit: float
    #: One sentence for each distance beyond a limit.
    faults: tuple[str, ...] = ()


def compared(bench: Bench, made: Made) -> Iterator[Compared]:
    """Yield the distance of each kind of evidence.

    Raises:
        ValueError: evidence is not in the form llmb writes.
    """
    yield from _of_weights(bench, made)
    if bench.trains and made.steps:
        yield from _of_losses(bench, made)
        yield from _of_steps(bench, made)
    elif made.rows is not None:
        yield from _of_calls(bench, made)
    yield from _of_passes(bench, made)


def same_first_weights(bench: Bench, made: Made) -> tuple[int, int]:
    """Return how many parameters have bit-identical first weights, and the number of parameters.

    The first number is smaller where the run's processor draws weights with other instructions
    (docs/records.md).
    """
    told = bench.read(PRISTINE) or made.pristine
    weights = bench.read(WEIGHTS)
    shown = {one.name: one.sha256 for one in (weights.processed if weights else told.parameters)}
    own = {one.name: one.sha256 for one in made.pristine.parameters}
    return sum(shown.get(name) == digest for name, digest in own.items()), len(own)


def _of_weights(bench: Bench, made: Made) -> Iterator[Compared]:
    """Yield the distance of weight samples at fences, equally many for each parameter."""
    fences, count = bench.read(FENCES), len(made.pristine.parameters)
    steps = made.fences
    if fences is None or not made.samples or not steps:
        return
    width = len(made.samples) // len(steps)
    shown = fences.get("parameters", ())
    if len(shown) != width * len(bench.timing.fence_steps):
        return  # a plugin that stores several parameters in one tensor
    each, faults, of_all = width // count, list[str](), list[Gap]()
    for number, after in enumerate(steps):
        found, row = [], bench.timing.fence_steps.index(after)
        for place, parameter in enumerate(made.pristine.parameters):
            begin, own = number * width + place * each, row * width + place * each
            right = made.samples[begin : begin + each]
            # Only matrices count. Gains are large and equal except for signs; biases begin at zero.
            if len(parameter.shape) > 1:
                found.append((gap(shown[own : own + each], right), parameter.name))
        of_all += [one for one, _ in found]
        worst, name = max((one.error, name) for one, name in found)
        if not worst <= _OF_WEIGHTS and each >= equivalence.FEW:
            faults.append(
                f"weights after step {after}: {name} is {worst:.3g} off (limit {_OF_WEIGHTS:g})"
            )
    what = f"weights after steps {_numbers(steps)}"
    yield Compared(what, total(of_all).error, _OF_WEIGHTS, tuple(faults[:1]))


def _of_losses(bench: Bench, made: Made) -> Iterator[Compared]:
    fences = bench.read(FENCES)
    most = min(made.steps, made.stable)
    steps = [steps for steps in bench.timing.fence_steps if steps <= most]
    if fences is None or not steps:
        return
    pairs = list(zip(fences.get("loss", ()), (made.losses[n - 1] for n in steps), strict=False))
    if len(pairs) < len(steps):
        raise ValueError("fences show fewer losses than there were fences")
    limits = [
        _ACROSS * equivalence.loss_limit(right, right, bench.facts.precision) / abs(right)
        for _, right in pairs
    ]
    errors = [abs(shown - right) / abs(right) for shown, right in pairs]
    faults = [
        f"the loss of step {steps[n] - 1} is {pairs[n][0]:.6g}, made again it is "
        f"{pairs[n][1]:.6g} ({error:.2g} of it off, limit {limits[n]:.2g})"
        for n, error in enumerate(errors)
        if not error <= limits[n]
    ]
    worst = max(range(len(steps)), key=lambda n: errors[n] / limits[n])
    what = f"losses of steps {_numbers([n - 1 for n in steps])}"
    yield Compared(what, errors[worst], limits[worst], tuple(faults[:1]))


def _of_steps(bench: Bench, made: Made) -> Iterator[Compared]:
    kept, values = bench.read(LEDGER), bench.read(VALUES)
    if kept is None or values is None or made.rows is None:
        return
    form = canonical_rows.of_bench(bench, kept)
    shown, stored = form.rows(values[audited.ROWS]), Rows(kept, made.rows)
    count = min(len(shown), len(stored))
    again = form.rows(stored.only(range(count)).every())
    honest = honest_error(ways(made.reference, "host"), made.reference, bench.facts.precision)
    times = _ACROSS * (_OF_FEW if count < _FEW_STEPS else 1.0) * honest.times
    honest = replace(honest, times=times).drifting(_ACROSS * ledger.drift_of(bench))
    clips = bench.facts.workload.clip_grad_norm is not None
    wider = replace(honest, times=ledger.OF_MOMENTS * times)
    if clips:  # the norm is a sum in FP32, with another order on other machines
        honest, wider = honest.at_least(ledger.CLIPPED), wider.at_least(ledger.OF_CLIPPED)
    # With larger limits a copy could pass for the run.
    honest, wider = honest.at_most(_OF_OTHERS), wider.at_most(_OF_OTHERS)
    least = ledger.least_of_element(bench)
    least = None if least is None else _ACROSS * least
    of_moment = None if least is None else ledger.OF_MOMENTS * least
    steps = f"of steps {_numbers(range(count))}"
    own = ComparedRows.of(shown.of_gradients(), again.of_gradients())
    gradients = StepByStep(own, honest, least)
    error, limit = gradients.together()
    first = _first_other(shown.of_gradients(), again.of_gradients(), max(OF_A_STEP, limit))
    yield Compared(f"gradients {steps}", error, limit, (*first, *gradients.faults()))
    for name in kept.moments:
        right = again.of_moment(name)
        if len(right) > 1:  # in the first step all are zero
            own = ComparedRows.of(shown.of_moment(name), right)
            moment = StepByStep(own, wider, of_moment, name)
            error, limit = moment.together()
            yield Compared(f"{name} {steps}", error, limit, tuple(moment.faults()))


def _first_other(shown: Rows, again: Rows, limit: float) -> Iterator[str]:
    """Yield a sentence for the first step with gradients beyond ``limit``."""
    for step in range(len(again)):
        error = gap(shown.row(step), again.row(step)).error
        if not error <= limit:
            told = f"the gradients of step {step} are {error:.3g} of their length off"
            yield f"{told} (limit {limit:.3g})"
            return


def _of_calls(bench: Bench, made: Made) -> Iterator[Compared]:
    kept, values = bench.read(LEDGER), bench.read(VALUES)
    if kept is None or values is None or made.rows is None:
        return
    shown, again = Rows(kept, values[audited.ROWS]), Rows(kept, made.rows)
    precision = bench.facts.precision
    honest = honest_error(ways(made.reference, "host"), made.reference, precision, trains=False)
    stored = {name: arrays.values(one) for name, one in stored_calls(shown, again).items()}
    own = gaps_of_calls(stored, shown.names, made.calls)
    calls = CallByCall(own, honest.of_all, _ACROSS * honest.times)
    found = calls.finding(ledger.L1, (), len(again))
    faults = (found.message,) if found.status is Status.FAIL else ()
    error, limit = calls.together()
    yield Compared(f"logits of {len(again)} calls", error, limit, faults)


def _of_passes(bench: Bench, made: Made) -> Iterator[Compared]:
    """Yield the distances of the last step and the two probes."""
    seen, known = bench.read(GRADIENTS), bench.facts.precision.judged_as
    if seen is None:
        raise ValueError(f"there is no {audited.GRADIENTS}")
    if not made.near:
        return
    names = ("live", "branches", "head") if made.near_the_last else ("branches", "head")
    honest = ways(made.reference, "host")
    errors = [
        total(gaps(way, made.reference, f"{name}/").values()).error
        for way in honest
        for name in names[:-1]
        if any(key.startswith(f"{name}/") for key in way)
    ]
    for name in names:
        right = {k: v for k, v in made.reference.items() if k.startswith(f"{name}/")}
        if not right:
            continue
        limit = _OF_OTHERS
        if made.complete and known is not None and errors and name != "head":
            least = equivalence.least_error(bench.facts.precision)
            times = times_of(bench.facts.precision, trains=bench.trains)
            least_of_all = ledger.CLIPPED if bench.facts.workload.clip_grad_norm else 0.0
            limit = min(limit, max(least_of_all, _ACROSS * times * max([least, *errors])))
        error = total(gaps(seen, right, f"{name}/").values()).error
        what = "the last step" if name == "live" else f"probe {name}"
        fault = f"{what} is {error:.3g} of its length off (limit {limit:.3g})"
        yield Compared(what, error, limit, () if error <= limit else (fault,))


def _numbers(numbers: Sequence[int]) -> str:
    """Return a range as text: ``0 to 2``, or ``7``."""
    first, last = numbers[0], numbers[-1]
    return f"{first} to {last}" if last > first else f"{first}"
