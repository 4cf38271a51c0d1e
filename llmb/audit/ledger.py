"""Rule L1: every step's gradients, or logits, match an honest run that repeated the step."""

from __future__ import annotations

import hashlib
import math
import struct
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from llmb.audit import canonical_rows, outputs, stored_places
from llmb.audit.bench import HONEST, LEDGER, STEPS, VALUES, WEIGHTS, Bench
from llmb.audit.call_by_call import CallByCall, DrawnWords
from llmb.audit.canonical_rows import CanonicalRows
from llmb.audit.compared_rows import ComparedRows, Rows, gaps_of_calls, words_of_calls
from llmb.audit.equivalence import ENOUGH, FEW
from llmb.audit.honest_error import HonestError, drift, honest_error, times_of
from llmb.audit.precision import ways
from llmb.audit.rule import Evidence, PartFinding, Rule
from llmb.audit.step_by_step import OF_A_STEP, StepByStep
from llmb.audit.step_directions import DROPPED, ROUNDED, StepDirections
from llmb.config import Mode
from llmb.formats import NARROW_BITS
from llmb.records import arrays, audited
from llmb.records.arrays import Array, Arrays
from llmb.records.audited import MOMENTS, LedgerEvidence
from llmb.records.draws import Draws
from llmb.records.finding import Finding, Level, Status
from llmb.records.places import ELEMENTS, drawn_places, fewer

#: Factor on the limits for the two recomputed steps, where each parameter has few samples. In 155
#: runs the worst parameter was 2.8 honest errors off, all together 1.6.
_OF_TWO_STEPS = 1.5
#: Factor on the limits for moments, in which the errors of steps add up. In 30 honest runs all
#: parameters together were at most 2.0 honest errors off, the worst parameter 2.5. A matrix with
#: the update left out in one step of ten was 45 off.
OF_MOMENTS = 1.5
#: Lower bounds of the limits of gradients and moments where gradients are clipped and ranks share a
#: model. The gradient norm is then a sum of squares in FP32 in another order. A CPU computes the
#: norm 0.63 % too small for 67 million elements, and 0.22 % too small for two halves, which puts
#: ``exp_avg_sq`` 0.8 % off. Gradients of an honest FP32 run drifted a quarter as far apart as the
#: moments in 20 steps.
CLIPPED, OF_CLIPPED = 5e-3, 2e-2
#: Lower bound of the limit for the median element of a parameter, relative to the element: a last
#: place of log(1/V), which lies between 8 and 16 for vocabularies V of 3,000 to 8.9 million words.
#: All probabilities of a flat softmax are off by half of a last place where the loss is computed in
#: 16 bits: an honest head was 0.032 off.
_LAST_PLACE = {"bfloat16": 2.0**-4, "float32": 2.0**-20}

REPLAYED = Evidence(audited.REPLAYED, arrays.read)
RECOMPUTED = Evidence(audited.RECOMPUTED, arrays.read)
_HOLLOW = (
    "most sampled gradients of the honest run are zero, or hang on few elements: no step can be "
    "told from no step"
)
L1 = Rule(
    "L1",
    Level.BLOCK,
    "every step computes the gradients, or logits, that an honest run's step computes, and makes "
    "the optimizer's step",
    measured="in each step 64 elements of each gradient, and 32 of a moment, in turn (modes "
    "forward and generate: 64 of each sequence's logits; fewer for more than 128 parameters or "
    "sequences): the worker learns the sampled indices only after the computation, and hands over"
    " the digest before it learns more (an accelerator one step later); learning rates drawn from"
    " 1e-5 to 3e-4; an honest run replays the steps from the first weights, on a CPU in a process "
    "without the plugin; on an accelerator such a process computes two steps of training, drawn "
    "afterwards, in a wider format; the places that a parameter map gives all sampled elements. "
    "Mode generate: the honest run draws every word again, from its own logits and the worker's "
    "noise, whose seed the worker's row shows. Directions of gradients alone are compared with "
    "dropout, which the replayed steps have not, below 8 bits, and in FP16 under autocast",
    limit="3 times the honest error of one step (moments: 4.5; sums as in E1, twice): together, "
    "for each parameter, for the median element of each gradient except biases (0.0625 at least "
    "in 16 bits; not in 8 bits; so too for a parameter with most of the length in fewer than 64 "
    "elements, 0.0938 of a moment); in no step 0.4 of a parameter's usual length. Totals of "
    "gradients leave out a twentieth of the steps, each parameter its own: the steps with the "
    "largest error. In BF16 at least 0.0087 times the square root of the layers, 1.5 times as "
    "much for each parameter (12 layers: 0.030 and 0.045). Calls: 2.25 times together, 3.375 "
    "times for each call and each sequence, 0.4 of a sequence's usual length; in rough formats "
    "together 0.2 of the squared length beyond two honest errors, and each 0.95 of its length "
    "(1.6 honest errors, if larger). FP32: 12 times (moments: 18). For ranks that share a model "
    "and clip gradients 0.005 at least (moments: 0.02). Words of samples: as many others as "
    "logits at their limit explain (0.4 times the limit times the usual logit, at most half of "
    "the words), and 4 standard deviations and 3 words more, together and for each call. By a "
    "parameter map no element lies in two places, and 90 % of each parameter's elements are found "
    "(less 3 standard deviations). Directions: the cosine, in the mean of all parameters: in each "
    "step 0.75 of that of judged steps, and at least 0.2; a squared sine of twice that of judged "
    "steps and 0.05; in the mean of all steps 0.9, 1.5 times and 0.02. With dropout 0.5 and 0.75 "
    "of the cosine to gradients without dropout, and no limit of the sine. In FP16 under autocast "
    "without the steps that overflow in the replay, too, and one more",
    cannot_see="training: steps after the replayed steps, or after the 80th; more than 64 ranks, "
    "ranks that share a model of more than 16 GB, FP16 without a loss scale; errors within the "
    "drift of honest runs; where directions are compared, all but the largest faults in steps that "
    "G1 does not judge. Modes forward and generate: calls that were not drawn, if there are more "
    "than 80 or two minutes do not suffice; errors smaller than the format's own rounding",
    evidence=(LEDGER, VALUES, REPLAYED, RECOMPUTED, STEPS),
    any_evidence=True,
    since=3,
    causes=(
        "packed copies of weights that are refreshed every few steps, or once too late",
        "a different kernel in the honest run than in the worker, because a variable or switch was "
        "set by hand",
    ),
)
RULES = (L1,)


def judge(bench: Bench) -> Iterator[Finding]:
    """Yield L1.

    Raises:
        ValueError: rows differ in length from the segments, or segments do not fit the mode.
    """
    if bench.why_no_ledger is not None:
        told = f"no step can be replayed: {bench.why_no_ledger}"
        yield L1.unjudged(Status.NOT_APPLICABLE, told)
        return
    timing, drawn = bench.timing, bench.drawn
    ledger, values, replayed = bench.read(LEDGER), bench.read(VALUES), bench.read(REPLAYED)
    recomputed = bench.read(RECOMPUTED)
    paths = bench.paths(LEDGER, VALUES, REPLAYED, *([] if recomputed is None else [RECOMPUTED]))
    if drawn is None or ledger is None or values is None:
        yield L1.unobserved("the worker left nothing of its steps")
        return
    made, hidden = len(timing.commitments), None
    if bench.trains:
        hidden = _hidden(bench, ledger)
    rows = Rows(ledger, values[audited.ROWS])
    if bench.trains:
        compared: Sequence[int] = range(drawn.steps_compared(made))
    else:
        _check_sequences(rows.names, generates=bench.facts.workload.mode == Mode.GENERATE.value)
        compared = drawn.calls_compared(made)
    broken = hidden or _broken(rows, {step: timing.commitments[step] for step in compared})
    broken = broken or _misplaced(bench, ledger, drawn)
    if broken:
        yield L1.finding(Status.FAIL, broken, evidence=paths)
        return
    if replayed is None or bench.measured is None:
        told = "no honest run has replayed the steps"
        if replayed is not None:
            told = "no honest run shows the limits (see rule P1)"
        yield L1.unobserved(told, paths)
        return
    least = drawn.least_replayed(len(compared))
    if not bench.trains:
        yield _of_calls(bench, rows, ledger, replayed, compared, least, paths)
        return
    form = canonical_rows.of_bench(bench, ledger)
    if bench.why_rough is not None:
        rows = form.rows(values[audited.ROWS])
        yield _of_directions(bench, rows, form.ledger, replayed, least, paths)
        return
    if bench.reference is None or "live/loss" not in bench.reference:
        yield L1.unobserved("there is no reference of a real step, and so no honest error", paths)
        return
    gradients = ComparedRows.read(replayed, audited.OF_GRADIENTS, form.names)
    count = len(gradients.steps)
    if count < least:
        yield L1.unobserved(_too_few(count, least), paths)
        return
    if count > len(rows):
        raise ValueError(f"{count} steps were replayed, of {len(rows)} that the worker shows")
    yield _of_steps(bench, form, replayed, gradients, paths)


def _too_few(replayed: int, least: int) -> str:
    return f"{replayed} steps were replayed, of {least} that had to be"


def _of_calls(
    bench: Bench,
    rows: Rows,
    ledger: LedgerEvidence,
    replayed: Arrays,
    compared: Sequence[int],
    least: int,
    paths: tuple[str, ...],
) -> Finding:
    """Return L1 without training; ``least`` of the ``compared`` calls had to be repeated.

    Raises:
        LookupError: the distances are missing.
        ValueError: the distances are of other sequences or calls than the worker's.
    """
    calls = gaps_of_calls(replayed, rows.names, compared)
    count = len({call for call, _ in calls})
    if count < least:
        return L1.unobserved(_too_few(count, least), paths)
    elements = {segment.name: segment.elements for segment in ledger.segments}
    words = DrawnWords(
        words_of_calls(replayed, rows.names, compared),
        elements.get(audited.TOKENS, 0),
        ledger.segments[0].elements,
    )
    honest = outputs.honest_error(bench)
    judged = CallByCall(calls, honest, times_of(bench.facts.precision, trains=False))
    return judged.finding(L1, paths, len(bench.timing.commitments), words)


def _of_steps(
    bench: Bench,
    form: CanonicalRows,
    replayed: Arrays,
    gradients: ComparedRows,
    paths: tuple[str, ...],
) -> Finding:
    """Return L1 of a training: ``gradients`` and moments of the replayed steps.

    Raises:
        LookupError: the distances of a moment are missing.
        ValueError: there are rows of other steps than were made, or than were recomputed.
    """
    drawn, recomputed = bench.drawn, bench.read(RECOMPUTED)
    assert drawn is not None
    made, count = len(bench.timing.commitments), len(gradients.steps)
    checked = tuple(step for step in drawn.recomputed(drawn.steps_compared(made)) if step < count)
    again = right = None
    if recomputed is not None:
        again = form.rows(replayed[audited.ROWS], checked, moments=False)
        right = form.rows(recomputed[audited.ROWS], checked, moments=False)
        if len(again) != len(checked):
            raise ValueError(f"the honest run shows {len(again)} rows of {len(checked)} steps")
    # On a CPU the reference run itself repeats the steps. In earlier runs the honest run did.
    known = bench.facts.on_host if right is None else len(right) in (0, len(checked))
    if not known:
        return L1.unobserved(
            "no process without the plugin has computed the steps that were drawn for it", paths
        )
    error, of_element = _honest_error(bench), least_of_element(bench)
    own = error.drifting(drift_of(bench))
    wider = replace(own, times=OF_MOMENTS * error.times)
    if bench.facts.workload.clip_grad_norm is not None and bench.facts.parallelism.is_shared:
        own, wider = own.at_least(CLIPPED), wider.at_least(OF_CLIPPED)
    if _is_hollow(gradients, form.ledger):
        return L1.unobserved(_HOLLOW, paths)
    worker = StepByStep(gradients, own, of_element)
    turns = len(form.ledger.moments)
    of_moment = None if of_element is None else OF_MOMENTS * of_element
    moments = [
        StepByStep(ComparedRows.read(replayed, one, form.names, turn, turns), wider, of_moment, one)
        for turn, one in enumerate(form.ledger.moments)
    ]
    wider = replace(error, times=_OF_TWO_STEPS * error.times)
    of_few = None if of_element is None else _OF_TWO_STEPS * of_element
    yardstick = None
    if again is not None and right:
        yardstick = StepByStep(ComparedRows.of(again, right), wider, of_few)
    by_reference = right is None  # the process of the reference repeated the steps
    return _of_training(
        [worker, *moments], yardstick, error, made, paths, by_reference=by_reference
    )


def _of_directions(
    bench: Bench,
    rows: Rows,
    ledger: LedgerEvidence,
    replayed: Arrays,
    least: int,
    evidence: tuple[str, ...],
) -> Finding:
    """Return L1 where no process repeats steps exactly; ``least`` steps had to be repeated.

    Raises:
        LookupError: the honest rows are missing.
        ValueError: the honest rows are of other parameters or steps than the worker's.
    """
    again = Rows(ledger.model_copy(update={"moments": ()}), replayed[audited.ROWS])
    if len(again) < least:
        return L1.unobserved(_too_few(len(again), least), evidence)
    if len(again) > len(rows):
        raise ValueError(f"{len(again)} steps were replayed, of {len(rows)} that the worker shows")
    found = StepDirections.of(
        rows.of_gradients(),
        again,
        [stop.step for stop in bench.timing.stops],
        DROPPED if bench.drops else ROUNDED,
        may_overflow=bench.facts.precision.scales_loss,
    )
    if not len(found.cosines) > ENOUGH * (len(again) - found.overflowed):
        return L1.unobserved(_HOLLOW, evidence)
    return found.finding(L1, evidence, len(bench.timing.commitments))


def parts(bench: Bench) -> Iterator[PartFinding]:
    """Yield L1 for each stored parameter, from the steps replayed by an honest run.

    Yield nothing where no step was replayed, where directions are compared, or where the worker's
    own evidence is missing.
    """
    ledger, values, replayed = bench.read(LEDGER), bench.read(VALUES), bench.read(REPLAYED)
    if bench.why_rough is not None or ledger is None or values is None or replayed is None:
        return
    names = canonical_rows.of_bench(bench, ledger).names
    gradients = ComparedRows.read(replayed, audited.OF_GRADIENTS, names)
    honest = _honest_error(bench).drifting(drift_of(bench))
    yield from StepByStep(gradients, honest, least_of_element(bench)).parts()


def drift_of(bench: Bench) -> float:
    """Return the smallest limit of all gradients together in the run of ``bench``.

    The limit is 0 for formats not stored in BF16: two honest FP32 trainings hardly drift apart.
    """
    if bench.facts.precision.dtype != "bfloat16":
        return 0.0
    return drift(bench.facts.workload.shapes.get("num_hidden_layers") or 0)


def least_of_element(bench: Bench) -> float | None:
    """Return the lower bound of the median element's limit; None: medians are not judged."""
    # In 8 bits a small element of a gradient may be all rounding: the scale comes from a large
    # element.
    precision = bench.facts.precision
    return _LAST_PLACE.get(precision.dtype) if precision.bits > NARROW_BITS else None


def _of_training(
    worker: Sequence[StepByStep],
    yardstick: StepByStep | None,
    honest: HonestError,
    made: int,
    evidence: tuple[str, ...],
    *,
    by_reference: bool,
) -> Finding:
    """Return L1 for a worker that made ``made`` steps.

    ``worker`` has the distances of gradients, then of each moment, from the honest run.
    ``yardstick`` has the distances of the honest run from the reference in the recomputed steps;
    None if no step was recomputed. ``by_reference``: the process that repeated the steps has no
    plugin.
    """
    faults = [fault for one in worker for fault in one.faults()]
    shown = "; ".join(one.measured() for one in worker)
    what = "gradients and moments" if len(worker) > 1 else "gradients"
    good = (
        f"{len(worker[0].steps)} of {made} steps replayed: the {what} of each are as near to the "
    )
    good += "honest run's as honest ones are"
    if yardstick is not None:
        shown += f"; the honest run's own {yardstick.measured()}"
        numbers = " and ".join(map(str, yardstick.steps))
        prefix = f"the honest run's own, in steps {numbers} without the plugin: "
        faults += [prefix + fault for fault in yardstick.faults()[:1]]
    elif by_reference:
        good += "; a process without the plugin repeated the steps"
    else:
        good += "; none was computed without the plugin, which the device needs"
    return L1.finding(
        Status.FAIL if faults else Status.PASS,
        "; ".join(faults) if faults else good,
        measured=shown,
        honest=f"{honest.of_all:.3g} of all, {honest.usual:.3g} in the median",
        limit=f"{honest.times:.3g} times honest (moments: {OF_MOMENTS * honest.times:.3g}), "
        f"{OF_A_STEP:g} in one step",
        basis="calibrated",
        observer="worker, honest run, verifier",
        evidence=evidence,
    )


def _hidden(bench: Bench, ledger: LedgerEvidence) -> str | None:
    """Return a fault where rows lack a moment, or a parameter of an audited step."""
    if ledger.moments != MOMENTS[: bench.facts.workload.optimizer.moments]:
        return "the rows of the steps do not show the moments of the optimizer"
    steps, most = bench.read(STEPS), max(segment.elements for segment in ledger.segments)
    shown = {segment.name: segment.elements for segment in ledger.segments}
    for step in steps.steps if steps is not None else ():
        due = {segment.name: min(most, segment.gradients) for segment in step.segments}
        due |= dict.fromkeys(step.without_gradient, 1)
        for name, elements in due.items():
            if shown.get(name, 0) < elements:
                found = f"the rows of the steps show {shown.get(name, 0)} elements of {name}, "
                return found + f"and step {step.index} had {elements}"
    return None


def _misplaced(bench: Bench, ledger: LedgerEvidence, drawn: Draws) -> str | None:
    """Return a fault where no model can be stored as the places of the samples say.

    There are no places without training, and none of plainly stored parameters: those follow from
    the nonce. Runs of earlier versions do not tell the shapes of stored parameters.
    """
    where, weights = bench.whole_numbers(VALUES).get(audited.WHERE), bench.read(WEIGHTS)
    shapes = [one.shape for one in ledger.segments if one.shape is not None]
    if where is None or weights is None or len(shapes) != len(ledger.segments):
        return None
    steps, rest = divmod(len(where), sum(one.elements for one in ledger.segments))
    if rest:
        raise ValueError(f"{len(where)} places are no rows of the ledger's parameters")
    indices, positions = [array("q") for _ in shapes], [array("q") for _ in shapes]
    begin = 0
    for step in range(steps):
        places = drawn_places(drawn.places(step), shapes, fewer(ELEMENTS, len(shapes)))
        for number, (first, stride, count) in enumerate(places):
            indices[number].extend(range(first, first + stride * count, stride))
            positions[number].extend(where[begin : begin + count])
            begin += count
    sizes = map(math.prod, shapes)
    samples = [*map(stored_places.StoredSamples, sizes, indices, positions)]
    return stored_places.fault(samples, weights.sizes, steps)


def _is_hollow(gradients: ComparedRows, ledger: LedgerEvidence) -> bool:
    """Tell whether most sampled gradients of the honest run are zero, or hang on few elements.

    A parameter map may call all elements padding: zeros of no step would agree with zeros.
    """
    told = [s.elements for s in ledger.segments if gradients.told_in_all[s.name] >= FEW]
    return sum(told) < ENOUGH * sum(segment.elements for segment in ledger.segments)


def _check_sequences(names: Sequence[str], *, generates: bool) -> None:
    """Check that ``names`` are all sequences, plus tokens and noise where tokens are generated.

    Raises:
        ValueError: other names, with which some values would not be compared.
    """
    tokens = [audited.TOKENS, audited.NOISE] if generates else []
    sequences = [f"sequence {number}" for number in range(len(names) - len(tokens))]
    if not sequences or [*names] != [*sequences, *tokens]:
        raise ValueError("the rows of the ledger are not those of sequences")


def _broken(rows: Rows, commitments: Mapping[int, str]) -> str | None:
    """Return a fault where rows do not match the digests in ``commitments``, by step number."""
    if len(rows) != len(commitments):
        return f"{len(rows)} steps are shown, {len(commitments)} were committed to"
    for number, (step, commitment) in enumerate(commitments.items()):
        if _digest(rows.row(number)) != commitment:
            return f"what is shown of step {step} is not what was committed to"
    return None


def _digest(row: Array) -> str:
    """Return the sha256 over a row as float32, least significant byte first."""
    return hashlib.sha256(struct.pack(f"<{len(row)}f", *row)).hexdigest()


def _honest_error(bench: Bench) -> HonestError:
    """Return the larger error of the honest runs, never below the error of two kernels."""
    honest, reference = bench.needed(HONEST), bench.reference
    precision = bench.facts.precision
    assert reference is not None  # E1's honest run, without which no precision was measured
    found = honest_error(ways(honest, precision.name), reference, precision)
    return replace(found, times=bench.sums.times(found.times, found.of_all, runs=2))
