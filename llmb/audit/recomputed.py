"""How far a bundle's evidence lies from what anybody computes of its config, seed and nonce.

The distances are those of the rules: L1's of gradients, moments and logits, E1's of the last step
and of the loss. The yardstick is made here, from the reference and an honest run on this host: no
number of the bundle says what may be off. docs/adr/0054 has the limits and why they hold elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from llmb.audit import equivalence, ledger
from llmb.audit.bench import GRADIENTS, PRISTINE, WEIGHTS, Bench
from llmb.audit.call_by_call import CallByCall
from llmb.audit.compared_rows import ComparedRows, Rows, gaps_of_calls, stored_calls
from llmb.audit.distance import Gap, gap, gaps, total
from llmb.audit.honest_error import honest_error, times_of
from llmb.audit.precision import ways
from llmb.audit.rule import Evidence
from llmb.audit.step_by_step import StepByStep
from llmb.config import Precision
from llmb.records import arrays, audited, evidence
from llmb.records.arrays import Array, Arrays
from llmb.records.audited import PristineEvidence
from llmb.records.finding import Status

#: How much wider than L1's limits these are: of other processors, kernels and orders of sums.
_ACROSS = 2.0
#: The same where a few steps were made: the samples of a parameter are few (rule L1: 1.5).
_FEW_STEPS, _OF_FEW = 16, 1.5
#: Of its length, that a pass may be off whose weights are those of another step of the run, and a
#: sample of weights. Another seed's are 1.4 off.
_OF_OTHERS, _OF_WEIGHTS = 0.75, 0.4
#: The same of the gradients of one step (rule L1).
_OF_A_STEP = 0.4
#: A sample of so few elements tells nothing of a single parameter.
_FEW = 16

FENCES = Evidence(evidence.FENCES, arrays.read)


@dataclass(frozen=True)
class Made:
    """What was made again of one repeat."""

    #: Of the steps, or calls: the row of each, ``[steps * elements]``; None where none was made.
    rows: Array | None
    #: The loss of each step, and samples of the weights at fences, ``[fences * samples]``.
    losses: Array
    samples: Array
    #: What is right of the passes after the last step, and what an honest run on this host shows.
    reference: Arrays
    pristine: PristineEvidence
    #: How many steps were made, and whether they are all: then passes have the weights of the last.
    steps: int
    complete: bool
    #: The fences of which there are samples, by the steps before each.
    fences: tuple[int, ...]
    #: Steps after which honest runs have drifted apart, and whether the weights of the passes are
    #: still near to the run's.
    stable: int
    near: bool
    #: Which calls the rows are of.
    calls: tuple[int, ...] = ()


@dataclass(frozen=True)
class Compared:
    """One kind of evidence beside what was made again: relative distance of all, and the limit."""

    what: str
    measured: float
    limit: float
    #: A sentence for each thing that is further off than it may be.
    faults: tuple[str, ...] = ()


def compared(bench: Bench, made: Made) -> Iterator[Compared]:
    """Yield how far each kind of evidence is off.

    Raises:
        ValueError: evidence is not in the form that llmb writes.
    """
    yield from _of_weights(bench, made)
    if bench.trains and made.steps:
        yield from _of_losses(bench, made)
        yield from _of_steps(bench, made)
    elif made.rows is not None:
        yield from _of_calls(bench, made)
    yield from _of_passes(bench, made)


def same_first_weights(bench: Bench, made: Made) -> tuple[int, int]:
    """Return of how many parameters the first weights are the same bit for bit, and of how many.

    Fewer than all where the run's processor draws them by other instructions (docs/records.md).
    """
    told = bench.read(PRISTINE) or made.pristine
    weights = bench.read(WEIGHTS)
    shown = {one.name: one.sha256 for one in (weights.processed if weights else told.parameters)}
    own = {one.name: one.sha256 for one in made.pristine.parameters}
    return sum(shown.get(name) == digest for name, digest in own.items()), len(own)


def _of_weights(bench: Bench, made: Made) -> Iterator[Compared]:
    """Yield the samples of weights at fences: of each parameter so many, as they are stored."""
    fences, count = bench.read(FENCES), len(made.pristine.parameters)
    steps = made.fences
    if fences is None or not made.samples or not steps:
        return
    width = len(made.samples) // len(steps)
    shown = fences.get("parameters", ())
    if len(shown) != width * len(bench.timing.fence_steps):
        return  # a plugin that stores several parameters in one
    each, faults, of_all = width // count, list[str](), list[Gap]()
    for number, after in enumerate(steps):
        found, row = [], bench.timing.fence_steps.index(after)
        for place, parameter in enumerate(made.pristine.parameters):
            begin, own = number * width + place * each, row * width + place * each
            right = made.samples[begin : begin + each]
            # Gains are large, and all the same but for their signs; biases begin at zero.
            if len(parameter.shape) > 1:
                found.append((gap(shown[own : own + each], right), parameter.name))
        of_all += [one for one, _ in found]
        worst, name = max((one.error, name) for one, name in found)
        if not worst <= _OF_WEIGHTS and each >= _FEW:
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
    kept, values = bench.read(ledger.LEDGER), bench.read(ledger.VALUES)
    if kept is None or values is None or made.rows is None:
        return
    shown, again = Rows(kept, values[audited.ROWS]), Rows(kept, made.rows)
    count = min(len(shown), len(again))
    again = Rows(kept, made.rows[: count * (len(made.rows) // len(again))])
    honest = honest_error(ways(made.reference, "host"), made.reference, _precision(bench))
    times = _ACROSS * (_OF_FEW if count < _FEW_STEPS else 1.0) * honest.times
    honest = replace(honest, times=times).drifting(_ACROSS * ledger.drift_of(bench))
    clips = bench.facts.workload.clip_grad_norm is not None
    wider = replace(honest, times=ledger.OF_MOMENTS * times)
    if clips:  # the norm is a sum in FP32, in another order elsewhere
        honest, wider = honest.at_least(ledger.CLIPPED), wider.at_least(ledger.OF_CLIPPED)
    # Beyond that a copy could be taken for the run.
    honest, wider = honest.at_most(_OF_OTHERS), wider.at_most(_OF_OTHERS)
    least = ledger.least_of_element(bench)
    least = None if least is None else _ACROSS * least
    steps = f"of steps {_numbers(range(count))}"
    own = ComparedRows.of(shown.of_gradients(), again.of_gradients())
    gradients = StepByStep(own, honest, least)
    error, limit = gradients.together()
    first = _first_other(shown.of_gradients(), again.of_gradients(), max(_OF_A_STEP, limit))
    yield Compared(f"gradients {steps}", error, limit, (*first, *gradients.faults()))
    for name in kept.moments:
        right = again.of_moment(name)
        if len(right) > 1:  # of the first step all are zero
            own = ComparedRows.of(shown.of_moment(name), right)
            moment = StepByStep(own, wider, None, name)
            error, limit = moment.together()
            yield Compared(f"{name} {steps}", error, limit, tuple(moment.faults()))


def _first_other(shown: Rows, again: Rows, limit: float) -> Iterator[str]:
    """Yield a sentence for the first step whose gradients are others."""
    for step in range(len(again)):
        error = gap(shown.row(step), again.row(step)).error
        if not error <= limit:
            told = f"the gradients of step {step} are {error:.3g} of their length off"
            yield f"{told} (limit {limit:.3g})"
            return


def _of_calls(bench: Bench, made: Made) -> Iterator[Compared]:
    kept, values = bench.read(ledger.LEDGER), bench.read(ledger.VALUES)
    if kept is None or values is None or made.rows is None:
        return
    shown, again = Rows(kept, values[audited.ROWS]), Rows(kept, made.rows)
    precision = _precision(bench)
    honest = honest_error(ways(made.reference, "host"), made.reference, precision, trains=False)
    stored = {name: arrays.values(one) for name, one in stored_calls(shown, again).items()}
    own = gaps_of_calls(stored, shown.names, made.calls)
    calls = CallByCall(own, honest.of_all, _ACROSS * honest.times)
    found = calls.finding(ledger.L1, (), len(again))
    faults = (found.message,) if found.status is Status.FAIL else ()
    error, limit = calls.together()
    yield Compared(f"logits of {len(again)} calls", error, limit, faults)


def _of_passes(bench: Bench, made: Made) -> Iterator[Compared]:
    """Yield the last step and the two probes."""
    seen, known = bench.read(GRADIENTS), _precision(bench).judged_as
    if seen is None:
        raise ValueError(f"there is no {audited.GRADIENTS}")
    if not made.near:
        return
    honest = ways(made.reference, "host")
    errors = [
        total(gaps(way, made.reference, f"{name}/").values()).error
        for way in honest
        for name in ("live", "branches")
        if any(key.startswith(f"{name}/") for key in way)
    ]
    for name in ("live", "branches", "head"):
        right = {k: v for k, v in made.reference.items() if k.startswith(f"{name}/")}
        if not right:
            continue
        limit = _OF_OTHERS
        if made.complete and known is not None and errors and name != "head":
            least = equivalence.least_error(_precision(bench))
            times = times_of(_precision(bench), trains=bench.trains)
            least_of_all = ledger.CLIPPED if bench.facts.workload.clip_grad_norm else 0.0
            limit = min(limit, max(least_of_all, _ACROSS * times * max([least, *errors])))
        error = total(gaps(seen, right, f"{name}/").values()).error
        what = "the last step" if name == "live" else f"probe {name}"
        fault = f"{what} is {error:.3g} of its length off (limit {limit:.3g})"
        yield Compared(what, error, limit, () if error <= limit else (fault,))


def _precision(bench: Bench) -> Precision:
    return bench.facts.precision


def _numbers(numbers: Sequence[int]) -> str:
    """Return ``0 to 2``, or ``7``."""
    first, last = numbers[0], numbers[-1]
    return f"{first} to {last}" if last > first else f"{first}"
