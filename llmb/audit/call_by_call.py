"""Rule L1, modes forward and generate: distance of each call's logits from an honest run's."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from llmb.audit.distance import Gap, or_worst, total
from llmb.audit.equivalence import most_of_part, within_excess
from llmb.audit.rule import Rule
from llmb.audit.step_by_step import OF_A_STEP, USUAL
from llmb.records.finding import Finding, Status

#: The factor for a single call, and for a single sequence in all calls. Few logits make the
#: distance vary: by 1.2 times where a call has 64 logits. Products in INT8 in half of the calls are
#: 2.1 honest errors off together, and 4.1 in each such call.
_EACH = 1.5
#: Share of the words of an exponential race that differ, for each unit of the error of a logit.
#: Measured: 0.2 to 0.4 (docs/adr/0080). The error in the limit is 2.25 honest errors. The most that
#: a normal error with a small standard deviation s can change is 0.8 s.
_WORDS_OF_ERROR = 0.4
#: Largest share of other words, and slack beyond the share: standard deviations of a count, and a
#: few words.
_MOST_WORDS, _DEVIATIONS, _FEW_WORDS = 0.5, 4.0, 3


@dataclass(frozen=True)
class DrawnWords:
    """Words of generated samples that the honest run draws otherwise, with the worker's noise."""

    #: By number of the call, of all sequences.
    others: Mapping[int, float]
    #: Words of a call in all sequences, and sampled logits of a sequence in a call.
    each: int
    logits: int

    def measured(self) -> str:
        """Return the shares of other words, in all calls and in the worst one."""
        if not self.others:
            return ""
        share = sum(self.others.values()) / len(self.others) / self.each
        worst = max(self.others.values()) / self.each
        return f"; {share:.2%} of the words drawn otherwise (worst call {worst:.2%})"

    def faults(self, error: float, usual: float) -> list[str]:
        """Return a fault where more words differ than logits with an ``error`` explain.

        ``error`` is relative to ``usual``, the usual logit.
        """
        share = min(_MOST_WORDS, _WORDS_OF_ERROR * error * usual)
        call = max(self.others, key=lambda each: self.others[each])
        counted = (
            ("together", sum(self.others.values()), self.each * len(self.others)),
            (f"of call {call}", self.others[call], self.each),
        )
        faults = []
        for where, count, of in counted:
            limit = of * share + _DEVIATIONS * math.sqrt(of * share) + _FEW_WORDS
            if not count <= limit:
                what = "are not drawn from the logits with the noise of llmb"
                faults.append(f"{count:.0f} of the {of} words {where} {what} (limit {limit:.1f})")
        return faults


_NO_WORDS = DrawnWords({}, 0, 0)


class CallByCall:
    """Distances of the sampled logits from the honest run's, by call and sequence."""

    def __init__(
        self, compared: Mapping[tuple[int, str], Gap], honest: float, times: float
    ) -> None:
        """Judge the gaps in ``compared``, by number of the call and name of the sequence.

        ``honest`` is the relative error of an honest run's logits. The limit is ``times * honest``,
        or less in a rough format (``within_excess``).
        """
        self._honest, self._gaps = honest, compared
        self._times = within_excess(times, honest, runs=2)
        self._most = most_of_part(honest)
        self._count = len({call for call, _ in compared})

    def together(self) -> tuple[float, float]:
        """Return the relative error of all logits together, and the limit."""
        return total(self._gaps.values()).error, self._times * self._honest

    def finding(
        self,
        rule: Rule,
        evidence: tuple[str, ...],
        made: int,
        words: DrawnWords = _NO_WORDS,
    ) -> Finding:
        """Return L1 for a worker that made ``made`` calls, with the ``words`` of its samples."""
        every, limit = self.together()
        of_each = min(_EACH * limit, self._most)
        by_call = _joined((f"call {call}", one) for (call, _), one in self._gaps.items())
        by_sequence = _joined((name, one) for (_, name), one in self._gaps.items())
        faults = []
        if not every <= limit:  # a NaN must not pass
            faults.append(f"all logits together are {every:.3g} off (limit {limit:.3g})")
        worst = dict(max(errors.items(), key=_by_error) for errors in (by_call, by_sequence))
        faults += [
            f"the logits of {name} are {error:.3g} off (limit {of_each:.3g})"
            for name, error in worst.items()
            if not error <= of_each
        ]
        largest, of_one, odd = self._oddest()
        faults += [*odd, *self._of_words(words)]
        share = f"{self._count} of {made} calls replayed"
        good = f"{share}: the logits of each sequence are as near to the honest run's as honest are"
        call, sequence = worst.values()
        return rule.finding(
            Status.FAIL if faults else Status.PASS,
            "; ".join(faults) if faults else good,
            measured=f"{every:.3g} of all, worst call {call:.3g}, worst sequence {sequence:.3g}, "
            f"in one call {largest:.3g}{words.measured()}",
            honest=f"{self._honest:.3g}",
            limit=f"{self._times:.4g} times honest, {of_each / self._honest:.4g} for each call and "
            f"sequence, {of_one:.3g} for one in one call",
            basis="calibrated",
            observer="worker, honest run",
            evidence=evidence,
        )

    def _of_words(self, words: DrawnWords) -> list[str]:
        if not words.others:
            return []
        size = math.sqrt(words.logits * len(self._gaps))
        return words.faults(self._times * self._honest, total(self._gaps.values()).length / size)

    def _oddest(self) -> tuple[float, float, list[str]]:
        """Return the largest distance of a sequence in a call, the limit, and any fault.

        Distance and limit are in usual lengths of a sequence's logits.
        """
        usual = total(self._gaps.values()).length / math.sqrt(len(self._gaps)) or 1.0
        distances = {where: one.distance / usual for where, one in self._gaps.items()}
        limit = max(OF_A_STEP, min(self._most, USUAL * statistics.median(distances.values())))
        (call, name), largest = max(distances.items(), key=_by_error)
        fault = (
            f"the logits of {name} are {largest:.3g} of their length off in call {call} "
            f"(limit {limit:.3g})"
        )
        return largest, limit, [] if largest <= limit else [fault]


def _joined(gaps_of: Iterable[tuple[str, Gap]]) -> dict[str, float]:
    """Return the relative error of all gaps with the same name, added up."""
    by_name: dict[str, list[Gap]] = {}
    for name, one in gaps_of:
        by_name.setdefault(name, []).append(one)
    return {name: total(every).error for name, every in by_name.items()}


def _by_error(named: tuple[object, float]) -> float:
    return or_worst(named[1], math.inf)
