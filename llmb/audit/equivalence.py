"""Rules E1 and G1: gradients of real steps are as near to the reference's as honest gradients."""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from llmb.audit.distance import (
    UNSEEN,
    Gap,
    chance,
    effective,
    gap,
    gaps,
    is_rounding,
    ratio,
    total,
)
from llmb.audit.precision import ROUGH, allowed_of_sum, of_class, ways
from llmb.audit.rule import PartFinding, compared, not_observed
from llmb.audit.sums import RoundedSums
from llmb.config import Precision
from llmb.formats import NARROW_BITS, PrecisionClass
from llmb.records.arrays import Apart, Array, Arrays
from llmb.records.audited import AuditedStep, ProbedEvidence, Segment
from llmb.records.draws import LEAST_BITS
from llmb.records.finding import Finding

#: Lower bound of the honest error: two kernels of one format differ by a last place.
_LEAST_ERROR = {"float32": 2.0**-21, "float64": 2.0**-45}
_LEAST_NARROW = 2.0**-9
#: Largest error of a parameter, and largest number of honest errors (``most_of_part``).
_NOTHING, _OF_ROUGH = 0.95, 1.6
#: In formats of fewer than 8 bits: largest number of honest errors and largest error of a parameter
#: whose gradient holds at least this share of the right one. Work left out lowers the share, and
#: rounding does not: an honest down_proj in NVFP4 was 1.08 of its length off, 2.2 honest errors. It
#: held 1.07 of the right one. Without a gradient the error is 1 and the share 0.
_OF_WHOLE, _MOST_OF_WHOLE, _LEAST_OF_WHOLE = 2.5, 1.25, 0.7
LOSS = "loss"
_LOSS_ULPS = 3
_HONEST_LOSSES = 1.5
#: Share of the loss that an honest loss may be off (1.3 % where the softmax is computed in BF16).
_HONEST_LOSS = 0.05
_LOSS_RELATIVE = 1e-5
#: The share for formats of fewer than 8 bits, where the loss of few tokens is a random draw: of 32
#: tokens an honest MXFP4 run was 1.6 % off, and three last places of BF16 allow 1.5 %.
_LOSS_OF_FEW_BITS = 0.04
_SIGNIFICAND = {"float16": 11, "bfloat16": 8, "float32": 24, "float64": 53}
#: The device's honest error may be at most this many times the host's honest error: for all
#: parameters together, for one, and for one in units of the median parameter's.
_ROUGHER = (2.0, 4.0, 2.0)
#: Where the device is the host itself. Torch then computes both alike, bit for bit, unless the
#: plugin chooses other kernels: with oneDNN off, or with other threads, all together were 0.98 to
#: 1.01 times the host's error, a parameter 1.16 times (docs/adr/0077).
_ROUGHER_ON_HOST = (1.2, 1.75, 1.5)
#: A sample with most of the length, or of the honest error, in fewer elements tells too little to
#: be the worst parameter. Most of a head's gradient lies in the words that came next, and a sample
#: holds one or two of these words. Where such a word's gradient cancels, the error is a single draw
#: (docs/adr/0027).
FEW = 16
#: This parameter has two elements, in which the parts of all sequences cancel: of two sequences an
#: honest error in FP16 was 0.05 and 0.2, depending on the dtype of the loss alone.
_TWO_ELEMENTS = "cls.seq_relationship.bias"
#: Most squared error of all gradients, or logits, together beyond the honest error, in squared
#: lengths of the gradients: a rough format would leave room for whole sequences left out. Example:
#: of an honest error of 0.6 the limit is 0.75, 1.25 honest errors. Of 22 honest runs in 4 bits the
#: furthest had 0.094 more (docs/adr/0086).
_MOST_EXCESS = 0.2
#: Share of the sampled gradients that must be left for a comparison.
ENOUGH = 0.5
#: FP16 under autocast: the loss is scaled by up to 2^16, and a step with overflowed gradients is
#: skipped. Its gradients cannot be compared, so whoever lets them overflow gets no verdict.
OVERFLOWED = "the scaled gradients overflowed, as FP16 may in a few steps: run again"


def judge_live(
    probed: ProbedEvidence,
    glanced: Arrays | None,
    seen: Arrays,
    honest: Arrays,
    reference: Arrays,
    precision: Precision,
    evidence: tuple[str, ...],
    sums: RoundedSums,
) -> Finding:
    """Return E1: loss and gradients of the last step, in whose pause the stream ended.

    ``glanced`` holds the blind samples: gradients read in the pause of each audited step before the
    worker could know of the audit. None where rule L1 compares the gradients of every step.
    """
    own = of_class(honest, precision.name)
    mine = gaps(seen, reference, "live/")
    theirs = [gaps(way, reference, "live/") for way in ways(honest, precision.name)]
    missing = [name for name in mine if f"live/{name}" in probed.missing]
    faults = [f"{len(missing)} gradients are missing: {missing[0]}, ..."] if missing else []
    elements = _elements(reference)
    comparison = _GradientComparison(mine, theirs, precision, sums, elements=elements)
    faults += comparison.faults()
    faults += _loss_fault(seen, own, reference, precision)
    if glanced is not None:
        faults += glance_fault(glanced, probed.last_step, precision)
    live = (one for name, one in seen.items() if name.startswith("live/"))
    if not missing and overflowed(live, precision):
        return not_observed("E1", f"the last step: {OVERFLOWED}", evidence)
    return comparison.finding("E1", faults, "the last step's loss and gradients", evidence)


def live_parts(
    seen: Arrays, honest: Arrays, reference: Arrays, precision: Precision, sums: RoundedSums
) -> Iterator[PartFinding]:
    """Yield E1 for the gradient of each parameter in the last step of the stream."""
    mine = gaps(seen, reference, "live/")
    theirs = [gaps(way, reference, "live/") for way in ways(honest, precision.name)]
    elements = _elements(reference)
    return _GradientComparison(mine, theirs, precision, sums, elements=elements).parts()


def _elements(reference: Arrays) -> dict[str, int]:
    """Return the number of compared elements of each gradient of the last step."""
    return {n.removeprefix("live/"): len(a) for n, a in reference.items() if n.startswith("live/")}


def judge_step(
    step: AuditedStep,
    name: str,
    seen: Arrays,
    honest: Arrays,
    reference: Arrays,
    precision: Precision,
    cost: str,
    padding: Collection[str],
    audited_steps: Iterable[int],
    evidence: tuple[str, ...],
    *,
    sums: RoundedSums,
) -> Finding:
    """Return G1: sampled gradients of an audited step with stored weights, inside the stream.

    ``name`` is the pass of the step, such as ``step-7``. ``padding`` names stored parameters that
    may have no gradient; ``audited_steps`` are the numbers of steps whose blind samples count.
    """
    right = reference[name]
    mine = _by_segment(step, seen[f"{step.index}/gradient"], right)
    if overflowed([seen[f"{step.index}/gradient"]], precision):
        return not_observed("G1", f"step {step.index}: {OVERFLOWED}", evidence)
    runs = ways(honest, precision.name), ways(reference, "host")
    theirs, hosts = ([_by_segment(step, w.get(name), right) for w in whose] for whose in runs)
    if f"host/{name}" not in reference:
        hosts = []
    rough = _rough_parts(hosts, precision)
    # A parameter map may call all elements padding: zeros of no step would agree with zeros.
    left = sum(
        segment.gradients
        for segment, own in slices(step)
        if segment.name not in rough and any(right[own])
    )
    for one in (mine, *theirs, *hosts):
        for name in rough:
            del one[name]
    without = [name for name in step.without_gradient if name not in padding]
    faults = [f"{len(without)} gradients are missing: {without[0]}, ..."] if without else []
    for index in audited_steps:
        faults += glance_fault(seen, index, precision)
    if not faults and (left < ENOUGH * len(right) or _is_rough(theirs, hosts, precision)):
        return not_observed("G1", f"step {step.index}: {ROUGH}", evidence)
    untold = _untold(step, name, right, runs[0])
    comparison = _GradientComparison(mine, theirs, precision, sums, untold)
    text = f"gradients of step {step.index}, which was like any other until its pause ({cost})"
    if rough:
        text += f", but for {len(rough)} of {len(step.segments)} parameters that no honest run gets"
        text += " right"
    return comparison.finding("G1", faults + comparison.faults(), text, evidence)


def _untold(step: AuditedStep, name: str, right: Array, honest: Sequence[Arrays]) -> frozenset[str]:
    """Return the parameters with samples that tell too little alone."""
    errors = [[a - b for a, b in zip(way.get(name, ()), right, strict=False)] for way in honest]
    found = set()
    for segment, own in slices(step):
        spread = [effective(error[own]) for error in errors]
        if (
            segment.name.endswith(UNSEEN)
            or effective(right[own]) < FEW
            or any(0 < elements < FEW for elements in spread)
        ):
            found.add(segment.name)
    return frozenset(found)


def _by_segment(step: AuditedStep, shown: Array | None, right: Array) -> dict[str, Gap]:
    """Return the gap of each parameter's sampled gradients; missing samples count as zero."""
    whole = shown is not None and len(shown) == len(right)
    return {
        segment.name: gap(shown[own] if whole and shown is not None else None, right[own])
        for segment, own in slices(step)
    }


def within_excess(times: float, honest: float, runs: int = 1) -> float:
    """Return the limit in ``honest`` errors: ``times``, or less in a rough format.

    The squared error may be ``_MOST_EXCESS`` larger than that of ``runs`` honest runs: two, where a
    run is compared with another run and not with the reference. Examples: 1.25 times an honest
    error of 0.6, and 1.5 times an honest error of 0.05.
    """
    return min(times, math.sqrt(runs + _MOST_EXCESS / honest**2))


def most_of_part(honest: float) -> float:
    """Return the largest error that a parameter, a call or a sequence may have.

    The error of a parameter without any gradient is 1, so the result is 0.95. With an ``honest``
    error above 0.59 the result is 1.6 honest errors. Example: 1.2 for an honest error of 0.75, the
    largest of honest runs in 4 bits with 12 layers.
    """
    return max(_NOTHING, _OF_ROUGH * honest)


def most_times_of_part(honest: float, precision: Precision) -> float:
    """Return ``most_of_part`` in ``honest`` errors; infinite for formats of more than 8 bits.

    In BF16 on a CPU, honest gradients of LayerNorm have errors near 1.
    """
    return most_of_part(honest) / honest if precision.bits <= NARROW_BITS else math.inf


def _times_of_whole(one: Gap, honest: float, precision: Precision) -> float:
    """Return the limit of a parameter in ``honest`` errors if its gradient is all there, else 0."""
    if precision.bits >= LEAST_BITS or not one.share >= _LEAST_OF_WHOLE:
        return 0.0
    return min(_OF_WHOLE, _MOST_OF_WHOLE / honest)


def overflowed(shown: Iterable[Array], precision: Precision) -> bool:
    """Tell whether a run with scaled gradients has a gradient that is not finite."""
    return precision.scales_loss and not all(map(_is_finite, shown))


def _is_finite(shown: Array) -> bool:
    if isinstance(shown, Apart):
        return math.isfinite(shown.distance)
    return all(map(math.isfinite, shown))


def _rough_parts(hosts: Sequence[Mapping[str, Gap]], precision: Precision) -> set[str]:
    """Return the parameters in which even the host's honest run is far from the reference.

    The host's run uses no vendor's code. A model shaken by a high learning rate has steps in which
    no two runs in 16 bits agree about the first layers (docs/adr/0022).
    """
    most = _class(precision).most_part_error
    return {n for host in hosts for n, one in host.items() if one.length and one.error > most}


def _is_rough(
    theirs: Sequence[Mapping[str, Gap]], hosts: Sequence[Mapping[str, Gap]], precision: Precision
) -> bool:
    """Tell whether the device's honest gradients of a step are too far off for a comparison."""
    most = _class(precision).most_error
    if hosts:
        most = min(most, _ROUGHER[0] * max(least_error(precision), roughest(hosts)))
    return not roughest(theirs) <= most


def roughest(ways: Iterable[Mapping[str, Gap]]) -> float:
    """Return the largest error of all gradients together; NaN if any error is NaN."""
    errors = [total(way.values()).error for way in ways]
    return math.nan if any(map(math.isnan, errors)) else max(errors)


def glance_fault(seen: Arrays, index: int, precision: Precision) -> list[str]:
    """Return a fault where gradients changed after the worker learned of the audit.

    NaN differs from NaN, except where scaled gradients may overflow.
    """
    scaled = precision.scales_loss
    asked = seen.get(f"{index}/asked")
    later = [seen.get(f"{index}/asked {when}") for when in ("before", "after")]
    if asked and all(one is not None and len(one) == len(asked) for one in later):
        pairs = [pair for one in later if one is not None for pair in zip(asked, one, strict=True)]
        changed = sum(a != b and not (scaled and math.isnan(a) and math.isnan(b)) for a, b in pairs)
        if not changed:
            return []
        return [f"{changed} gradients of step {index} changed once it was to be looked at"]
    return [f"the gradients of step {index} were not read before it was to be looked at"]


def slices(step: AuditedStep) -> Iterator[tuple[Segment, slice]]:
    """Yield each segment of ``step``, and the place of its gradient elements."""
    first = 0
    for segment in step.segments:
        yield segment, slice(first, first + segment.gradients)
        first += segment.gradients


def _class(precision: Precision) -> PrecisionClass:
    known = precision.judged_as
    assert known is not None  # other formats have no honest run to compare with
    return known


def is_plausible(honest: Arrays, reference: Arrays, precision: Precision, *, on_host: bool) -> bool:
    """Tell whether the device's honest run is good enough to compare the last step with.

    The error is limited by the host's honest error, where a host's run exists, and by the largest
    error of the precision class. ``on_host``: the device is the host.
    """
    rougher = _ROUGHER_ON_HOST if on_host else _ROUGHER
    if precision.judged_as is None:
        return False
    devices, hosts = ways(honest, precision.name), ways(reference, "host")
    pairs = zip(devices, [*hosts, hosts[0]], strict=False)
    return all(_may_serve(device, host, reference, precision, rougher) for device, host in pairs)


def _may_serve(
    arrays: Arrays,
    host: Arrays,
    reference: Arrays,
    precision: Precision,
    rougher: tuple[float, float, float],
) -> bool:
    wanted = [key for key in reference if key.startswith("live/")]
    if any(not _is_whole(arrays.get(key), reference[key]) for key in wanted):
        return False
    loss, right = _one(arrays.get(f"live/{LOSS}")), _one(reference.get(f"live/{LOSS}"))
    if loss is not None and right is not None:
        # Of a text that is known by heart the loss is near zero, and rounding most of it.
        on_host = _one(host.get(f"live/{LOSS}"))
        least = 0.0 if on_host is None else _HONEST_LOSSES * abs(on_host - right)
        if abs(loss - right) > max(_HONEST_LOSS * abs(right), least):
            return False
    own = _error(arrays, reference)
    most = _class(precision).most_error
    if f"live/{LOSS}" in host:
        most = min(most, rougher[0] * max(least_error(precision), _error(host, reference)))
        if not _no_part_is_rougher(arrays, host, reference, _class(precision), rougher):
            return False
    return own <= most


def _no_part_is_rougher(
    device: Arrays,
    host: Arrays,
    reference: Arrays,
    known: PrecisionClass,
    rougher: tuple[float, float, float],
) -> bool:
    """Tell whether no parameter is far worse than on the host: totals hide small parameters.

    A device may add up the gradient of a bias over the tokens in 16 bits. Example: the values' bias
    in a layer of BERT was 4.3 times as far off as on the host, 0.033 of its length (docs/adr/0094).
    """
    found = gaps(device, reference, "live/")
    whole = total(found.values())
    own = {n: g.error for n, g in found.items() if not is_rounding(g, whole, known.most_error)}
    theirs = {name: one.error for name, one in gaps(host, reference, "live/").items()}
    usual = statistics.median(own.values()) if own else 0.0
    own.pop(_TWO_ELEMENTS, None)
    _, of_part, of_usual = rougher
    least = of_usual * usual
    return all(
        error <= max(of_part * theirs[name], least, allowed_of_sum(name, known))
        for name, error in own.items()
    )


def _is_whole(shown: Array | None, right: Array) -> bool:
    if isinstance(shown, Apart):
        return _is_finite(shown)
    return shown is not None and len(shown) == len(right) and _is_finite(shown)


def _error(shown: Arrays, reference: Arrays) -> float:
    error = total(gaps(shown, reference, "live/").values()).error
    return math.inf if math.isnan(error) else error


def least_error(precision: Precision) -> float:
    """Return the lower bound of the relative error of an honest run."""
    return _LEAST_ERROR.get(precision.dtype, _LEAST_NARROW)


class _GradientComparison:
    """Errors of one pass beside honest errors: the rougher of two honest runs sets the limit."""

    def __init__(
        self,
        mine: Mapping[str, Gap],
        theirs: Sequence[Mapping[str, Gap]],
        precision: Precision,
        sums: RoundedSums,
        untold: frozenset[str] = frozenset(),
        elements: Mapping[str, int] | None = None,
    ) -> None:
        """Compare ``mine`` with honest runs; ``elements`` of a parameter, if few, are chance."""
        self._limits = _class(precision).times
        least = least_error(precision)
        whole = total(mine.values())
        self._global = whole.error
        self._honest = max(least, roughest(theirs))
        self._times_of_all = within_excess(sums.times(self._limits[0], self._honest), self._honest)
        named = [name for name in theirs[0] if name not in untold and name != _TWO_ELEMENTS]
        own = {name: max(way[name].error for way in theirs) for name in named}
        usual = statistics.median(own.values()) if own else 0.0
        honest = {name: max(least, usual, error) for name, error in own.items()}
        told = {name: one.error for name, one in mine.items() if name in honest}
        # An honest kernel of another kind was 3.8 times as far off in a gain of 4 elements, and 2.2
        # times in a gain of 8 (Qwen3 in BF16): the limits are 5 and 3.83 instead of 2.
        known = {} if elements is None else elements
        times = {
            name: max(
                min(
                    sums.times(self._limits[1], honest[name]) + chance(known.get(name)) - 1,
                    most_times_of_part(honest[name], precision),
                ),
                _times_of_whole(mine[name], honest[name], precision),
            )
            for name in told
        }
        told = {
            name: error
            for name, error in told.items()
            if error <= times[name] * honest[name]
            or not is_rounding(mine[name], whole, self._honest)
        }
        self._of_parts = {name: (told[name], honest[name], times[name]) for name in told}
        # Compare each parameter with the parameter's own honest error: the worst honest error would
        # hide most other parameters.
        self._worst_name = max(
            told, key=lambda name: ratio(told[name], times[name] * honest[name]), default=""
        )
        self._worst = told.get(self._worst_name, 0.0)
        self._honest_worst = honest.get(self._worst_name, least)
        self._times_of_worst = times.get(self._worst_name, self._limits[1])

    def parts(self) -> Iterator[PartFinding]:
        """Yield the finding of each parameter."""
        for name, (error, honest, times) in self._of_parts.items():
            yield PartFinding(
                part=name,
                what="relative error of the gradient",
                measured=f"{error:.3g}",
                honest=f"{honest:.3g}",
                limit=f"{times * honest:.3g} ({round(times, 2)} times honest)",
                kept=error <= times * honest,
                badness=ratio(error, times * honest),
            )

    def faults(self) -> list[str]:
        found = []
        of_all, of_worst = self._times_of_all, self._times_of_worst
        # Not `>`: a NaN must not pass.
        if not self._global <= of_all * self._honest:
            found.append(
                f"the gradients are {_times(self._global, self._honest)} as far from the "
                f"reference as an honest run's (limit {round(of_all, 2)}), furthest "
                f"{self._worst_name}"
            )
        if not self._worst <= of_worst * self._honest_worst:
            found.append(
                f"{self._worst_name} is {_times(self._worst, self._honest_worst)} as far off as "
                f"in an honest run (limit {round(of_worst, 2)})"
            )
        return found

    def finding(
        self, rule: str, faults: list[str], what: str, evidence: tuple[str, ...]
    ) -> Finding:
        message = "; ".join(faults) if faults else f"{what}: as near to the reference as honest"
        return compared(
            rule,
            not faults,
            message,
            evidence,
            measured=f"{self._global:.3g} of all, worst {self._worst:.3g}",
            honest=f"{self._honest:.3g} of all, worst {self._honest_worst:.3g}",
            limit=f"{round(self._times_of_all, 2)} and {round(self._times_of_worst, 2)} times "
            "honest",
        )


def _times(value: float, honest: float) -> str:
    return f"{value / honest:.3g} times" if math.isfinite(value) else "not a number of times"


def _loss_fault(seen: Arrays, honest: Arrays, reference: Arrays, precision: Precision) -> list[str]:
    right = _one(reference.get("live/loss"))
    shown, own = _one(seen.get("live/loss")), _one(honest.get("live/loss"))
    if right is None or shown is None or own is None:
        return ["the loss was not shown"]
    limit = loss_limit(own, right, precision)
    if abs(shown - right) <= limit:
        return []
    return [f"the loss is {shown:.6g}, the reference's {right:.6g} (limit {limit:.2g} apart)"]


def loss_limit(honest: float, right: float, precision: Precision) -> float:
    """Return the allowed distance of a loss from ``right``, given the loss of an ``honest`` run."""
    significand = _SIGNIFICAND.get(precision.dtype, _SIGNIFICAND["bfloat16"])
    known = precision.judged_as
    if precision.bits <= NARROW_BITS:  # the loss is a random draw, in every dtype
        significand = min(significand, _SIGNIFICAND["bfloat16"])
    elif known is not None and known.format is not None:  # TF32: stored as float32
        significand = min(significand, known.format.significant_bits + 1)
    ulp = 2.0 ** (math.floor(math.log2(abs(right))) + 1 - significand) if right else 0.0
    share = _LOSS_OF_FEW_BITS if precision.bits < NARROW_BITS else _LOSS_RELATIVE
    return max(_HONEST_LOSSES * abs(honest - right), _LOSS_ULPS * ulp, share * abs(right))


def _one(array: Array | None) -> float | None:
    return array[0] if array is not None and len(array) == 1 else None
