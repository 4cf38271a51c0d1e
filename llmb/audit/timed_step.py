"""Judge of G1 in training: an audited step, unknown to the worker in advance."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

from llmb.audit import canonical_rows, dropped_step, equivalence, stored_together
from llmb.audit.bench import (
    HONEST,
    JUDGED,
    LEDGER,
    PRISTINE,
    REFERENCE,
    REPLAY,
    STEP_VALUES,
    STEPS,
    VALUES,
    WEIGHTS,
    Bench,
)
from llmb.audit.canonical_names import of_step
from llmb.audit.compared_rows import ComparedRows
from llmb.audit.honest_error import honest_error
from llmb.audit.judged_steps import JudgedSteps
from llmb.audit.precision import ways as ways_of
from llmb.audit.rule import Rule, compared
from llmb.records import audited
from llmb.records.audited import AuditedStep, StepsEvidence, judged_pass
from llmb.records.finding import JUDGED_SINCE, Finding, Level, Status
from llmb.records.run_record import RepeatTiming, WorkloadFacts

G1 = Rule(
    "G1",
    Level.BLOCK,
    "a timed step does what an audited step does",
    measured="gradients of two or three steps inside the window (three to five if L1 does not "
    "compare every step), drawn from the nonce, each step with the same chance, unknown to the "
    "worker as judged until its pause: the worker writes the weights of the step while the clock "
    "of the run stands still, and the reference and two honest runs on the same device compute "
    "the step from these weights; 64 elements of each gradient, or 256 if L1 does not compare "
    "every step (1,024 in fewer than 8 bits; fewer for more than 128 parameters). Not observed if "
    "matrices of several kinds are stored in one parameter, except for queries, keys and values, "
    "and for gate and up (judged apart in formats of 16 bits and more, if L1 compares every step). "
    "Not observed if more than half of a stored parameter is padding (0.2 more in 25 steps; a "
    "thousandth of the model may lie in more padding), or if there are more than 1.5 times as many "
    "stored parameters as in the model and 32. With dropout: beside the mean of four honest steps "
    "with the same weights and tokens and other masks, and beside an honest step with the same "
    "masks, whose seed llmb sets before each step. Not observed if the worker has other masks, "
    "except for ranks that share a model (there not if the rounding of 4 bits may be all that is "
    "off from the mean)",
    limit="as E1, for all parameters together and for each; halfway between for a kind of "
    "parameter in all layers, such as every up_proj, if L1 compares every step. With dropout 0.75 "
    "of the honest mean (each module and parameter 0.1), and 0.7 to 1.2 times as far from it as "
    "honest steps (each 2; one sequence a step: 1.6, each 3.5; BERT's pooler twice as far); "
    "from the honest step with the same masks 1.5 honest errors (each 2.25; in 8 bits 1.75 and "
    "2.75, in 6 bits 1.6 and 2.5, in 4 bits and above 16 bits 3 and 4.5), and 0.5 of what these "
    "masks change",
    cannot_see="errors within the limit; steps after the last judged step, if a plugin is honest "
    "until then; parameters with too large an error even in the honest run of the step (the "
    "finding counts these parameters); smaller faults where directions are compared (dropout, "
    "fewer than 8 bits, FP16 under autocast)",
    evidence=(STEPS, STEP_VALUES, REPLAY),
    causes=(
        "a kernel that is chosen anew (autotuned) after the first steps and adds up in a narrower "
        "type",
        "gradients still being reduced or copied on a second stream while the optimizer reads them",
    ),
)
RULES = (G1,)
#: The pass of the one step with stored weights, by rules 3 and older.
_OF_EARLIER = "step"
#: Tokens of the shortest sequences for which the limits of steps with dropout were measured.
_SHORTEST = 32
_ONE_STEP = "a window of one step has no judged step: rule O2 looks at the step"
_NOT_HANDED = "the worker did not hand over the weights of each judged step"


def judge(bench: Bench) -> Iterator[Finding]:
    """Yield G1 of a training step; the judge ``gradients`` checks the honest run first."""
    if not bench.trains:
        return
    if (why := _mixed(bench)) is not None:
        yield G1.unobserved(why)
        return
    if bench.every_step:
        yield _of_judged(bench)
        return
    steps = bench.needed(STEPS)
    earlier = int(bench.facts.rules_version) < JUDGED_SINCE
    if bench.drops and earlier:
        yield G1.unjudged(
            Status.NOT_APPLICABLE,
            "dropout draws each step's gradients: E1 and E2 look at a pass without dropout",
        )
        return
    honest, reference = bench.read(HONEST), bench.reference
    kept = [step for step in steps.steps if step.weights_kept]
    passes = [_OF_EARLIER if earlier else judged_pass(step.index) for step in kept]
    if not earlier and (told := _not_all(bench, kept)) is not None:
        yield told
        return
    if not kept or honest is None or reference is None or not {*passes} <= reference.keys():
        return
    if bench.measured is None or not all(is_inside(step.index, bench.timing) for step in kept):
        return
    weights = bench.read(WEIGHTS)
    judged: Callable[..., Finding] = partial(equivalence.judge_step, sums=bench.sums)
    if bench.drops:
        facts = bench.facts
        judged = partial(
            dropped_step.judge,
            sequences=_sequences(facts.workload),
            other_masks=facts.parallelism.is_shared,
        )
    found = [
        judged(
            of_step(bench, step),
            name,
            bench.needed(STEP_VALUES),
            honest,
            reference,
            bench.facts.precision,
            _cost(steps, bench.timing),
            weights.padding if weights is not None else (),
            [one.index for one in steps.steps],
            bench.paths(STEP_VALUES, HONEST, REFERENCE),
        )
        for step, name in zip(kept, passes, strict=True)
    ]
    yield _together(found, [step.index for step in kept])


def _mixed(bench: Bench) -> str | None:
    """Return why no parameter can be judged alone; None if the parameters can be.

    The plugin stores matrices of several kinds in one parameter, or too few elements of a parameter
    are read. Rules 3 and older allowed both.

    Raises:
        ValueError: the places of the samples are no whole rows, or the model has no such place.
    """
    pristine = bench.read(PRISTINE)
    if pristine is None or int(bench.facts.rules_version) < JUDGED_SINCE:
        return None
    shapes, one_layer = {p.name: p.shape for p in pristine.parameters}, bench.why_rough is not None
    for stored, counts, where in _places(bench):
        few = stored_together.starved(stored, counts, where, shapes)
        if few is not None:
            return few
        found = stored_together.mixed(stored, counts, where, shapes, one_layer=one_layer)
        if found is not None:
            layers = "a layer" if one_layer else "all layers"
            return (
                f"{found}, and each limit of a single parameter would be a limit of both: store "
                "matrices apart (together may be queries, keys and values, and gate and up, of "
                f"{layers})"
            )
    return None


def _places(bench: Bench) -> Iterator[tuple[list[str], list[int], Sequence[int]]]:
    """Yield stored parameters, sampled elements of each, and the elements' places in the model.

    The samples are those of all steps (rule L1), then those of each audited step.
    """
    ledger, steps = bench.read(LEDGER), bench.needed(STEPS)
    if ledger is not None and bench.read(VALUES) is not None:
        where = bench.whole_numbers(VALUES).get(audited.WHERE)
        counts = [one.elements for one in ledger.segments]
        # Rule L1 fails if the places are no whole rows.
        if counts and where is not None and len(where) % sum(counts) == 0:
            yield [one.name for one in ledger.segments], counts, where
    if bench.read(STEP_VALUES) is None:
        return
    of_steps = bench.whole_numbers(STEP_VALUES)
    for step in steps.steps:
        where = of_steps.get(f"{step.index}/where")
        if where is not None:
            own = step.segments
            yield [one.name for one in own], [one.gradients for one in own], where


def _not_all(bench: Bench, kept: Sequence[AuditedStep]) -> Finding | None:
    """Return a finding where the steps with ``kept`` weights are not the drawn steps."""
    due, timing = _due(bench), bench.timing
    if not due:
        return G1.unjudged(Status.NOT_APPLICABLE, _ONE_STEP)
    if [stop.step for stop in timing.stops] != [*due] or [one.index for one in kept] != [*due]:
        return G1.unobserved(_NOT_HANDED)
    return None


def _due(bench: Bench) -> tuple[int, ...]:
    """Return the judged steps that the nonce draws."""
    timing, drawn = bench.timing, bench.drawn
    if drawn is None:
        return ()
    window = range(timing.warmup_steps, timing.warmup_steps + timing.timed_steps)
    return drawn.judged(window, len(timing.commitments))


def _together(found: Sequence[Finding], steps: Sequence[int]) -> Finding:
    """Return the finding of the worst step: a broken limit, then a step that was not observed."""
    turn = (Status.FAIL, Status.NOT_OBSERVED, Status.PASS)
    worst = min(found, key=lambda one: turn.index(one.status))
    others = [f"{step}" for step, one in zip(steps, found, strict=True) if one is not worst]
    if worst.status is not Status.PASS or not others:
        return worst
    return worst.model_copy(
        update={
            "message": f"{worst.message}; likewise step{'s' * (len(others) > 1)} {_listed(others)}"
        }
    )


def _listed(numbers: Sequence[str]) -> str:
    """Return ``numbers`` as a list in words. Example: "3, 7 and 12"."""
    *others, last = numbers
    return f"{', '.join(others)} and {last}" if others else last


def _of_judged(bench: Bench) -> Finding:
    """Return G1 of a run whose every step rule L1 compares: the weights of drawn steps were kept.

    Raises:
        LookupError: the distances lack a process.
        ValueError: the distances are of other parameters or steps than the worker has shown.
    """
    if int(bench.facts.rules_version) < JUDGED_SINCE:
        told = "rule L1 compares the gradients of every step"
        return G1.unjudged(Status.NOT_APPLICABLE, told)
    due = _due(bench)
    if not due:
        return G1.unjudged(Status.NOT_APPLICABLE, _ONE_STEP)
    stored, ledger = bench.read(JUDGED), bench.read(LEDGER)
    if [stop.step for stop in bench.timing.stops] != [*due]:
        return G1.unobserved(_NOT_HANDED)
    if stored is None or not stored.keys() >= {audited.MEASURED, audited.IS_HONEST}:
        return G1.unobserved("no other process has made the judged steps again")
    # A precision is measured beside an honest run, a reference and the worker's own passes alone.
    if bench.measured is None or ledger is None:
        return G1.unobserved("there is no honest run to compare the judged steps with")
    honest, reference = bench.needed(HONEST), bench.reference
    if reference is None or "live/loss" not in reference:
        return G1.unobserved("there is no reference of a real step, and so no honest error")
    names = canonical_rows.of_bench(bench, ledger).names
    kinds = (audited.IS_HONEST, f"{audited.IS_HONEST}{audited.WIDE_LOSS}")
    worker, *ways = (
        ComparedRows.read(stored, kind, names)
        for kind in (audited.MEASURED, *kinds)
        if kind in stored
    )
    if any(len(one.steps) != len(due) for one in (worker, *ways)):
        raise ValueError("the distances are of other steps than were judged")
    precision = bench.facts.precision
    last = None
    if not bench.facts.on_host:
        last = honest_error(ways_of(honest, precision.name), reference, precision)
    weights = bench.read(WEIGHTS)
    model = names if weights is None else weights.sizes
    judged = JudgedSteps(due, worker, ways, last, precision, model, bench.sums)
    return _finding(judged, due, bench.paths(JUDGED, HONEST, REFERENCE))


def _finding(judged: JudgedSteps, steps: Sequence[int], evidence: tuple[str, ...]) -> Finding:
    named = f"step{'s' * (len(steps) > 1)} {_listed([*map(str, steps)])}"
    worst, of_all = judged.worst(), judged.furthest()
    message = f"{named}, drawn and unknown to the worker until read: gradients as near to the "
    message += "reference as honest ones"
    if not worst.ratio <= 1:
        message = f"{worst.text()}; judged were {named}"
    return compared(
        "G1",
        worst.ratio <= 1,
        message,
        evidence,
        measured=f"{of_all.measured:.3g} of all, worst {worst.measured:.3g}",
        honest=f"{of_all.honest:.3g} of all, worst {worst.honest:.3g}",
        limit=f"{of_all.times:.3g} and {worst.times:.3g} times honest",
    )


def _sequences(workload: WorkloadFacts) -> float:
    """Return the number of sequences in a step of all ranks, each of 32 tokens or more."""
    length = int(workload.shapes.get("sequence_length") or 0)
    return workload.tokens_per_step / max(_SHORTEST, length)


def is_inside(step: int, timing: RepeatTiming) -> bool:
    """Tell whether ``step`` lies inside the timed window."""
    return timing.warmup_steps <= step < timing.warmup_steps + timing.timed_steps


def _cost(steps: StepsEvidence, timing: RepeatTiming) -> str:
    share = steps.pause_ns / max(1, timing.stop_ns - timing.start_ns)
    return f"all pauses took {share:.2%} of the window's length"
