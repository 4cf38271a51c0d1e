"""Rules E1, E3, G1 and P1 without training: logits are as near to the reference as honest logits.

One sequence of a step is sampled, at positions the worker could not know in advance. The reference
computes all logits of a generated sequence at once, without a KV cache.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from llmb.audit.bench import (
    DEVICE_REFERENCE,
    GRADIENTS,
    HONEST,
    PROBED,
    REFERENCE,
    STEP_VALUES,
    STEPS,
    Bench,
)
from llmb.audit.distance import Gap, gap
from llmb.audit.equivalence import least_error, within_excess
from llmb.audit.gradients import E1, E3, P1
from llmb.audit.precision import Measured, live_weights, of_class
from llmb.audit.rule import compared, not_observed
from llmb.audit.timed_step import G1, is_inside
from llmb.config import Precision
from llmb.formats import UNKNOWN, narrower
from llmb.records.arrays import Arrays
from llmb.records.audited import LOGITS, AuditedStep, ProbedEvidence
from llmb.records.finding import Finding
from llmb.records.run_record import PrecisionBits

RULES = (E1, E3, P1, G1)
LIVE, STEP, PROBES = "live", "step", ("branches", "head")
_ROUGHER = 0.75


def judge(bench: Bench) -> Iterator[Finding]:
    """Yield the findings about logits, in modes without training."""
    looked, steps = bench.read(STEPS), bench.read(STEP_VALUES)
    if bench.trains or looked is None or steps is None or not bench.shows(P1):
        return
    # The device computed references that are too much work for the host.
    reference = {**(bench.right(DEVICE_REFERENCE) or {}), **(bench.right(REFERENCE) or {})}
    kept = next((step for step in looked.steps if step.weights_kept), None)
    if kept is not None and not is_inside(kept.index, bench.timing):
        kept = None
    paths = bench.paths(GRADIENTS, STEP_VALUES, HONEST, REFERENCE)
    probed, seen, honest = bench.needed(PROBED), bench.needed(GRADIENTS), bench.needed(HONEST)
    shown = Shown(probed, kept, seen, steps, honest, reference)
    judged = Outputs(shown, bench.facts.precision, paths)
    yield from judged.findings()
    bench.measured = judged.measured()


def honest_error(bench: Bench) -> float:
    """Return the relative error of an honest run's logits in real steps; see E1.

    The result is the larger error of the last step and the audited step, never below the error of
    two kernels.
    """
    reference = {**(bench.right(DEVICE_REFERENCE) or {}), **(bench.right(REFERENCE) or {})}
    precision = bench.facts.precision
    own = of_class(bench.needed(HONEST), precision.name)
    items = (f"{name}/{LOGITS}" for name in (LIVE, STEP))
    errors = [gap(own.get(i), reference[i]).error for i in items if i in reference]
    return max([least_error(precision), *errors])


@dataclass(frozen=True)
class Shown:
    """Arrays shown by the worker, honest run and reference for one repeat."""

    probed: ProbedEvidence
    #: The audited step inside the window; None: no such step.
    kept: AuditedStep | None
    seen: Arrays
    steps: Arrays
    honest: Arrays
    reference: Arrays


class Outputs:
    """Judges the outputs of one worker."""

    def __init__(self, shown: Shown, precision: Precision, evidence: tuple[str, ...]) -> None:
        """Compare the seen arrays with the reference, beside honest runs of each class."""
        self._shown, self._precision, self._evidence = shown, precision, evidence
        self._seen = {**shown.seen}
        if shown.kept is not None:
            logits = shown.steps.get(f"{shown.kept.index}/{LOGITS}")
            if logits is not None:
                self._seen[f"{STEP}/{LOGITS}"] = logits
        self._host = of_class(shown.reference, "host")
        known = self._known = precision.judged_as
        names = [one.name for one in (known, *narrower(known))] if known is not None else []
        found = {name: of_class(shown.honest, name) for name in names}
        self._classes = {name: arrays for name, arrays in found.items() if arrays}

    def findings(self) -> Iterator[Finding]:
        """Yield E1, E3, G1 and P1, as far as evidence exists."""
        yield self._live_weights()
        if not self._is_plausible():
            why = "what should be an honest run on the device is rougher than one"
            why = UNKNOWN if self._known is None else why
            yield from (self._not_observed(rule, why) for rule in ("E1", "G1", "P1"))
            return
        last = self._shown.probed.last_step
        yield self._near("E1", LIVE, [last], f"the logits of step {last}")
        if self._shown.kept is not None:
            index = self._shown.kept.index
            what = f"the logits of step {index}, which was like any other until its pause"
            yield self._near("G1", STEP, [index], what)
        yield self._effective()

    def measured(self) -> Measured | None:
        """Return the reached class; None without a usable honest run."""
        if not self._is_plausible():
            return None
        own, honest = self._bits(self._seen), self._bits(self._classes[self._precision.name])
        reached = next((n for n, arrays in self._classes.items() if not self._short(arrays)), None)
        return Measured(
            reached,
            PrecisionBits(
                forward_min=round(min(own.values()), 3),
                honest_forward_min=round(min(honest.values()), 3),
            ),
        )

    def _items(self) -> Sequence[str]:
        wanted = (f"{name}/{LOGITS}" for name in (LIVE, STEP, *PROBES))
        return [item for item in wanted if item in self._shown.reference]

    def _bits(self, arrays: Arrays) -> Mapping[str, float]:
        right = self._shown.reference
        return {item: gap(arrays.get(item), right[item]).bits for item in self._items()}

    def _is_plausible(self) -> bool:
        """Tell whether the device's honest run is as good as the host's, within the limits."""
        name = self._precision.name
        if self._known is None or name not in self._classes or not self._items():
            return False
        device, host = self._bits(self._classes[name]), self._bits(self._host)
        short = [host[item] - device[item] for item in host if item in self._host] or [0.0]
        live = device.get(f"{LIVE}/{LOGITS}", 0.0)
        return live >= self._known.floor_of_logits and statistics.median(short) <= _ROUGHER

    def _short(self, arrays: Arrays) -> list[str]:
        """Return the items that do not reach the class with the honest run ``arrays``."""
        own, honest = self._bits(self._seen), self._bits(arrays)
        assert self._known is not None  # an honest run exists only for a known format
        slack = self._known.slack
        # A class measured in fewer passes is judged only in the measured passes.
        return [i for i in own if i in arrays and not own[i] >= honest[i] - slack]

    def _near(self, rule: str, name: str, steps: Sequence[int], what: str) -> Finding:
        item = f"{name}/{LOGITS}"
        if item not in self._shown.reference:
            return self._not_observed(rule, "no reference was computed of it")
        right, own = self._shown.reference[item], self._classes[self._precision.name]
        mine, theirs = gap(self._seen.get(item), right), gap(own.get(item), right)
        honest = max(least_error(self._precision), theirs.error)
        assert self._known is not None
        limit = within_excess(self._known.times_of_logits, honest)
        faults = [] if mine.error <= limit * honest else [_far(mine, honest, limit)]
        faults += [fault for index in steps for fault in self._changed(index)]
        message = "; ".join(faults) if faults else f"{what}: as near to the reference as honest"
        return compared(
            rule,
            not faults,
            message,
            self._evidence,
            measured=f"{mine.error:.3g}",
            honest=f"{honest:.3g}",
            limit=f"{limit:.3g} times honest",
        )

    def _changed(self, index: int) -> list[str]:
        """Return a fault where logits changed after the worker learned of the audit."""
        asked = self._shown.steps.get(f"{index}/asked")
        again = self._shown.steps.get(f"{index}/asked again")
        if not asked or again is None or len(again) != len(asked):
            return [f"the logits of step {index} were not read before it was to be looked at"]
        changed = sum(a != b for a, b in zip(asked, again, strict=True))
        return [f"{changed} logits of step {index} changed once it was looked at"] * bool(changed)

    def _live_weights(self) -> Finding:
        bits = self._bits(self._seen)
        of_probes = {probe: bits.get(f"{probe}/{LOGITS}") for probe in PROBES}
        seen = {probe: value for probe, value in of_probes.items() if value is not None}
        if len(seen) < len(PROBES):
            return self._not_observed("E3", "a probe could not be made")
        return live_weights(seen, self._evidence, self._known)

    def _effective(self) -> Finding:
        measured, declared = self.measured(), self._precision.name
        assert measured is not None
        assert self._known is not None
        slack = self._known.slack
        reached, bits = measured.effective, measured.bits
        message = f"computes in {declared}"
        if reached != declared:
            message = f"declared {declared}, computes in {reached or 'no known format'}"
        return compared(
            "P1",
            reached == declared,
            message,
            self._evidence,
            measured=f"{bits.forward_min} bits",
            honest=f"{bits.honest_forward_min} bits",
            limit=f"{slack} bits below an honest run of the class, in each of {len(self._items())}",
        )

    def _not_observed(self, rule: str, why: str) -> Finding:
        return not_observed(rule, why, self._evidence)


def _far(mine: Gap, honest: float, limit: float) -> str:
    times = mine.error / honest
    return f"the logits are {times:.3g} times as far off as an honest run's (limit {limit:.3g})"
