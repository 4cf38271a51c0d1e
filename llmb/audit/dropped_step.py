"""G1 with dropout: an audited step beside honest steps of the same weights and tokens.

Honest steps differ in their masks, so their gradients scatter about a mean. The worker's gradient
must hold the mean, and be as far from it as an honest gradient is (docs/adr/0075).
"""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import mul

from llmb.audit.distance import UNSEEN, effective, or_worst
from llmb.audit.equivalence import (
    ENOUGH,
    FEW,
    OVERFLOWED,
    glance_fault,
    least_error,
    overflowed,
    slices,
)
from llmb.audit.precision import ROUGH, of_class, ways
from llmb.audit.rule import compared, not_observed
from llmb.config import Precision
from llmb.records.arrays import Array, Arrays
from llmb.records.audited import DROPPED, DROPPED_ALIKE, DROPPED_APART, AuditedStep
from llmb.records.finding import Finding

#: Share of the honest mean in a gradient without dropout, if the honest steps are right. Measured:
#: 1.01 to 1.12.
_RIGHT = (0.7, 1.5)
#: Share of the mean in the squared length of a parameter's honest gradient: with less, a few honest
#: steps tell too little of the mean. Measured: 0.7 to 0.85 of all parameters.
_LEAST_SIGNAL = 0.25
#: Elements with most of the length of a parameter, or of a module: with fewer its share is chance.
_FEW_FOR_A_SHARE = 128
#: Parameters with a gradient from one token of each sequence, so a single mask moves most of it: an
#: honest pooler was 3.21 times as far from the mean as honest steps (limit 3.06) in one run of 39.
_OF_ONE_TOKEN, _TIMES_OF_ONE_TOKEN = re.compile(r"(^|\.)(pooler|seq_relationship)(\.|$)"), 2.0
#: Least share of the honest mean: of all parameters, and of each parameter or module.
_LEAST_SHARE, _LEAST_SHARE_OF_PART = 0.75, 0.1
#: Most honest errors between two honest runs with the same masks: of all, and of a parameter; by
#: the most bits of a format. Wider formats, and 4 bits or fewer, have the limits of all other
#: formats. No probe sees products while dropout is on. In BF16
#: honest runs with other kernels, compiled or not, had 0.83 and 1.4 at most. With products in INT8
#: the worst of the judged steps had 1.8 and 2.9 at least (12 layers: 1.1 and 3.5). In FP8 honest
#: runs with other scales had 1.34 and 2.14, and two products of three in 4 bits 2 and 2.75. In
#: MXFP6 stochastic rounding had 1.21 and 1.82, and all products in 4 bits 1.77 and 2.65.
_MOST_UNLIKE_ELSE = 3.0, 4.5
_MOST_UNLIKE = {4: _MOST_UNLIKE_ELSE, 6: (1.6, 2.5), 8: (1.75, 2.75), 16: (1.5, 2.25)}
#: Share of what the masks change from which a gradient has the same masks, and is off by rounding.
_SAME_MASKS = 0.9
_ROUNDING_HINT = (
    "The masks are those of the honest step: look for products in a narrower format, and for sums "
    "in 16 bits, while dropout is on"
)
_MASKS_HINT = (
    "Draw the masks as the reference does: each call of torch.nn.functional.dropout or "
    "scaled_dot_product_attention in the same order and of the same shape, and no other random "
    "number before; compile in the post-processing, and leave "
    "torch._inductor.config.fallback_random alone"
)
#: Least share of what the masks change in an honest step with the same masks. Rounding to 4 bits
#: moves a gradient as far as masks do, so distances alone do not show dropout. Honest runs in MXFP4
#: had 0.82 to 0.96; without dropout 0.14 to 0.25, because the mean of four steps is itself off.
_LEAST_OF_MASKS = 0.5
_MASKS_UNSEEN = (
    "the gradients are so near the mean of honest steps that the format's rounding may be all that "
    "is off: nothing shows that dropout was on. Run again"
)
#: Fewer sequences of 32 tokens do not widen the limits further.
_LEAST_SEQUENCES = 0.25


@dataclass(frozen=True)
class DroppedLimits:
    """Distances from the honest mean, in distances of an honest step.

    The more sequences a step has, the less a single mask moves: the largest allowed distance falls
    with the root of the number of sequences. Honest steps of one sequence of 32 tokens had
    distances of 0.87 to 1.29, and a part 2.44 or less; of two sequences 0.77 to 1.15;
    without dropout 0.59 or less. Of a shorter sequence one or two words are masked, so it counts as
    a part of a sequence of 32 tokens: an honest step of 8 tokens had a distance of 0.56.
    """

    #: Least share of the mean.
    share: float
    #: Least and most of all parameters, and most of each parameter or module.
    nearest: float
    furthest: float
    furthest_part: float

    @classmethod
    def of(cls, sequences: float) -> DroppedLimits:
        """Return the limits for a step of ``sequences``, of 32 tokens or more."""
        few = 1 / math.sqrt(max(_LEAST_SEQUENCES, sequences))
        return cls(
            share=1 - (1 - _LEAST_SHARE) * max(1.0, few),
            nearest=1 - 0.3 * max(1.0, few),
            furthest=1 + max(0.2, 0.6 * few),
            furthest_part=2 + 1.5 * few,
        )


def judge(
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
    sequences: float,
    other_masks: bool,
) -> Finding:
    """Return G1 of a judged step in a run with dropout.

    The step has ``sequences`` sequences (``DroppedLimits``). ``other_masks``: an honest step cannot
    have the worker's masks, because ranks share the model and draw masks of their parts. The other
    arguments are those of ``equivalence.judge_step``.
    """
    own, shown = of_class(honest, precision.name), seen[f"{step.index}/gradient"]
    mean, apart = own.get(f"{name}/{DROPPED}"), own.get(f"{name}/{DROPPED_APART}")
    alike = own.get(f"{name}/{DROPPED_ALIKE}")
    if mean is None or alike is None or not apart:
        why = f"step {step.index}: there are no honest steps with dropout to compare with"
        return not_observed("G1", why, evidence)
    if overflowed([shown], precision):
        return not_observed("G1", f"step {step.index}: {OVERFLOWED}", evidence)
    right = reference[name]
    plain = [run[name] for run in ways(honest, precision.name) if name in run]
    steps = HonestSteps.of(step, mean, apart, right, plain, precision)
    without = [name for name in step.without_gradient if name not in padding]
    faults = [f"{len(without)} gradients are missing: {without[0]}, ..."] if without else []
    for index in audited_steps:
        faults += glance_fault(seen, index, precision)
    if not faults and not steps.serve(right):
        return not_observed("G1", f"step {step.index}: {ROUGH}", evidence)
    comparison = steps.compare(shown if len(shown) == len(mean) else [0.0] * len(mean))
    limits = DroppedLimits.of(sequences)
    faults += comparison.faults(limits)
    message = "; ".join(faults)
    if not faults:
        unlike = steps.unlike(shown, alike, precision)
        if not other_masks and not unlike.is_near:
            return not_observed("G1", f"step {step.index}: {unlike.told}", evidence)
        if other_masks and comparison.whole.distance < limits.nearest:
            return not_observed("G1", f"step {step.index}: {_MASKS_UNSEEN}", evidence)
    if not faults:
        message = (
            f"gradients of step {step.index}, which was like any other until its pause ({cost}): "
            f"as honest steps with {'other' if other_masks else 'the same'} masks of dropout"
        )
    whole, least, furthest = comparison.whole, comparison.least, comparison.furthest
    return compared(
        "G1",
        not faults,
        message,
        evidence,
        measured=f"{whole.share:.2f} of the mean of honest steps (least {least.share:.2f}), "
        f"{whole.distance:.2f} times as far from it as they are (most {furthest.distance:.2f})",
        honest=f"1 of the mean, {steps.nearest:.2f} to {steps.furthest:.2f} times as far",
        limit=f"{limits.share:.3g} of the mean (each {_LEAST_SHARE_OF_PART}), "
        f"{limits.nearest:.3g} to {limits.furthest:.3g} times as far (each "
        f"{limits.furthest_part:.3g})",
    )


@dataclass(frozen=True)
class _DroppedPart:
    """The honest steps' gradients of one parameter."""

    name: str
    where: slice
    #: Squared lengths: of the true mean, and of what one step is off, with and without rounding.
    #: The scatter of honest steps holds their rounding: ``noise`` may count rounding twice.
    signal: float
    noise: float
    scatter: float
    #: Relative error of an honest gradient without dropout.
    error: float
    #: Effective number of elements: in the mean, or without dropout if there are fewer.
    elements: float

    @property
    def length(self) -> float:
        """The squared length of an honest gradient: every parameter counts alike in a total."""
        return self.signal + self.noise


@dataclass(frozen=True)
class _DroppedPlaces:
    """A gradient beside the mean of honest steps: of a parameter, of a module, or of all."""

    name: str
    #: The share of the mean that the gradient holds: 1 in an honest step, on average.
    share: float
    #: Distance from the mean, in distances of an honest step.
    distance: float
    #: The same in distances without the rounding, for the lower limit.
    of_scatter: float
    elements: float

    @property
    def times(self) -> float:
        """Width of the limit of ``distance``, in limits of most parameters."""
        return _TIMES_OF_ONE_TOKEN if _OF_ONE_TOKEN.search(self.name) else 1.0


@dataclass(frozen=True)
class _DroppedComparison:
    """A gradient beside the mean of honest steps."""

    whole: _DroppedPlaces
    #: The parameter or module with the smallest share, and the one nearest to the limit of its
    #: distance, or furthest beyond.
    least: _DroppedPlaces
    furthest: _DroppedPlaces

    def faults(self, limits: DroppedLimits) -> list[str]:
        """Return a sentence for each broken limit."""
        found, whole, least, furthest = list[str](), self.whole, self.least, self.furthest
        most = furthest.times * limits.furthest_part
        # Not `<`: a NaN must not pass.
        if not (whole.share >= limits.share and least.share >= _LEAST_SHARE_OF_PART):
            found.append(
                f"the gradients hold {whole.share:.2f} of the mean of honest steps with other "
                f"masks (limit {limits.share:.3g}), least {least.name}: {least.share:.2f} (limit "
                f"{_LEAST_SHARE_OF_PART})"
            )
        if not (whole.distance <= limits.furthest and furthest.distance <= most):
            found.append(
                f"the gradients are {whole.distance:.3g} times as far from the mean of honest "
                f"steps as these are (limit {limits.furthest:.3g}), most {furthest.name}: "
                f"{furthest.distance:.3g} times (limit {most:.3g})"
            )
        if whole.of_scatter < limits.nearest:
            found.append(
                f"the gradients are only {whole.of_scatter:.2f} times as far from the mean of "
                f"honest steps as these are (limit {limits.nearest:.3g}): dropout is left out, or "
                "less"
            )
        return found


@dataclass(frozen=True)
class _Unlike:
    """A gradient beside one with the same masks, in honest errors of a step without dropout."""

    together: float
    #: Share of the other gradient's deviation from the mean.
    of_masks: float
    part: str
    times: float
    #: Most of ``together`` and of ``times``.
    most: tuple[float, float]

    @property
    def is_near(self) -> bool:
        """Tell whether two honest runs may be so far apart."""
        near = self.together <= self.most[0] and self.times <= self.most[1]
        # Not `<`: a NaN must not pass.
        return near and self.of_masks >= _LEAST_OF_MASKS

    @property
    def told(self) -> str:
        """The distance, and what a plugin may do otherwise than an honest step."""
        hint = f"Other masks hide errors of narrow products. {_MASKS_HINT}"
        if self.of_masks >= _SAME_MASKS:
            hint = _ROUNDING_HINT
        return (
            f"the gradients are {self.together:.3g} honest errors from those of an honest step "
            f"with the same seed of dropout (limit {self.most[0]:.3g}), most {self.part}: "
            f"{self.times:.3g} (limit {self.most[1]:.3g}), and hold {self.of_masks:.2f} of "
            f"what its masks change (limit {_LEAST_OF_MASKS:.3g}). {hint}"
        )


@dataclass(frozen=True)
class HonestSteps:
    """Mean and scatter of the gradients of honest steps."""

    _parts: Sequence[_DroppedPart]
    _mean: Array
    #: Number of honest steps.
    _count: int
    #: Number of sampled elements in parts that are compared, and of all.
    _told: int
    _all: int
    #: Distances of the honest steps from the mean of the others, in the mean of these distances.
    nearest: float
    furthest: float

    @classmethod
    def of(
        cls,
        step: AuditedStep,
        mean: Array,
        apart: Array,
        right: Array,
        plain: Sequence[Array],
        precision: Precision,
    ) -> HonestSteps:
        """Return the honest steps with ``mean`` and distances ``apart`` from it, step by step.

        ``plain`` are the gradients of honest runs of the step without dropout, and ``right`` the
        reference: both together show what the format rounds.
        """
        width = len(step.segments)
        count = len(apart) // width
        rows = [[*apart[n * width : (n + 1) * width]] for n in range(count)]
        least = least_error(precision)
        parts = []
        for number, (segment, where) in enumerate(slices(step)):
            own = mean[where]
            scatter = sum(row[number] ** 2 for row in rows) / (count - 1)
            length = math.fsum(x * x for x in own)
            rounded = max(
                (math.dist(run[where], right[where]) ** 2 for run in plain),
                default=0.0,
            )
            signal = length - scatter / count
            # Masks may zero an element with most of the length in most of the few honest steps.
            elements = min(effective(own), effective(right[where]))
            told = not segment.name.endswith(UNSEEN) and elements >= FEW
            if told and signal >= _LEAST_SIGNAL * (signal + scatter):
                noise = scatter + max(rounded, least**2 * length)
                whole = math.fsum(x * x for x in right[where])
                error = max(math.sqrt(rounded / whole), least)
                parts.append(
                    _DroppedPart(segment.name, where, signal, noise, scatter, error, elements)
                )
        told_parts = {part.name for part in parts}
        weights = {part.name: part.length for part in parts}
        sums = [
            math.fsum(
                value**2 / weights[segment.name]
                for segment, value in zip(step.segments, row, strict=True)
                if segment.name in told_parts
            )
            for row in rows
        ]
        usual = statistics.fmean(sums) or 1.0
        return cls(
            parts,
            mean,
            count,
            sum(s.gradients for s in step.segments if s.name in told_parts),
            len(mean),
            math.sqrt(min(sums) / usual),
            math.sqrt(max(sums) / usual),
        )

    def serve(self, right: Array) -> bool:
        """Tell whether the honest steps are good enough to compare with.

        ``right``, the gradient without dropout that a process without the plugin computed, must
        hold their mean: the honest steps were made with the vendor's backend.
        """
        if self._told < ENOUGH * self._all or not all(map(math.isfinite, self._mean)):
            return False
        return _RIGHT[0] <= self.compare(right).whole.share <= _RIGHT[1]

    def compare(self, shown: Array) -> _DroppedComparison:
        """Return ``shown`` beside the mean: all of it, and the worst parameters and modules."""
        sums = {part.name: self._sums(part, shown) for part in self._parts}
        placed = list(self._placed(sums))
        whole = _placed("", list(sums.values()))
        many = [one for one in placed if one.elements >= _FEW_FOR_A_SHARE]
        return _DroppedComparison(
            whole,
            min(many, key=lambda one: or_worst(one.share, -math.inf), default=whole),
            max(
                placed, key=lambda one: or_worst(one.distance, math.inf) / one.times, default=whole
            ),
        )

    def unlike(self, shown: Array, alike: Array, precision: Precision) -> _Unlike:
        """Return how far ``shown`` is from ``alike``, a gradient with the same masks."""
        known = (most for bits, most in _MOST_UNLIKE.items() if precision.bits <= bits)
        limits = next(known, _MOST_UNLIKE_ELSE)
        apart = usual = most = 0.0
        worst = ""
        along = whole = 0.0
        for part in self._parts:
            length = math.hypot(*alike[part.where])
            off = math.dist(shown[part.where], alike[part.where]) / (length or math.nan)
            apart, usual = apart + off**2, usual + part.error**2
            if off / part.error > most:
                most, worst = off / part.error, part.name
            mean = self._mean[part.where]
            due = [a - m for a, m in zip(alike[part.where], mean, strict=True)]
            own = [a - m for a, m in zip(shown[part.where], mean, strict=True)]
            along += sum(map(mul, own, due)) / part.length
            whole += sum(map(mul, due, due)) / part.length
        of_masks = along / whole if whole else math.nan
        return _Unlike(math.sqrt(apart / usual), of_masks, worst, most, limits)

    def _sums(self, part: _DroppedPart, shown: Array) -> _Sums:
        theirs, own = shown[part.where], self._mean[part.where]
        return _Sums(
            sum(map(mul, theirs, own)) / part.length,
            part.signal / part.length,
            math.dist(theirs, own) ** 2 / part.length,
            # An honest mean is off, too.
            (1 + 1 / self._count) * part.noise / part.length,
            (1 + 1 / self._count) * part.scatter / part.length,
            part.elements,
        )

    def _placed(self, sums: Mapping[str, _Sums]) -> Iterator[_DroppedPlaces]:
        """Yield the place of every parameter, and of every module with more than one."""
        modules: dict[str, list[_Sums]] = {}
        for name, one in sums.items():
            yield _placed(name, [one])
            parts = name.split(".")
            for depth in range(1, len(parts)):
                modules.setdefault(".".join(parts[:depth]), []).append(one)
        for name, many in modules.items():
            if len(many) > 1:
                yield _placed(name, many)


@dataclass(frozen=True)
class _Sums:
    """Sums over one parameter, in squared lengths of its honest gradient."""

    along: float
    signal: float
    apart: float
    noise: float
    scatter: float
    elements: float


def _placed(name: str, sums: Sequence[_Sums]) -> _DroppedPlaces:
    signal, noise = sum(one.signal for one in sums), sum(one.noise for one in sums)
    scatter, apart = sum(one.scatter for one in sums), sum(one.apart for one in sums)
    return _DroppedPlaces(
        name,
        sum(one.along for one in sums) / signal if signal else math.nan,
        math.sqrt(apart / noise) if noise else math.nan,
        math.sqrt(apart / scatter) if scatter else math.inf,
        sum(one.elements for one in sums),
    )
