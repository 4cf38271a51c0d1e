"""Rule L1, modes forward and generate: distance of each call's logits from an honest run's."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping

from llmb.audit.distance import Gap, total
from llmb.audit.rule import Rule
from llmb.audit.step_by_step import OF_A_STEP, USUAL
from llmb.records.finding import Finding, Status

#: The factor for a single call, and for a single sequence in all calls. Few logits make the
#: distance vary: by 1.2 times where a call has 64 logits. Products in INT8 in half of the calls are
#: 2.1 honest errors off together, and 4.1 in each such call.
_EACH = 1.5


class CallByCall:
    """Distances of the sampled logits from the honest run's, by call and sequence."""

    def __init__(
        self, compared: Mapping[tuple[int, str], Gap], honest: float, times: float
    ) -> None:
        """Judge the gaps in ``compared``, by number of the call and name of the sequence.

        ``honest`` is the relative error of an honest run's logits. The limit is ``times * honest``.
        """
        self._honest, self._times, self._gaps = honest, times, compared
        self._count = len({call for call, _ in compared})

    def together(self) -> tuple[float, float]:
        """Return the relative error of all logits together, and the limit."""
        return total(self._gaps.values()).error, self._times * self._honest

    def finding(self, rule: Rule, evidence: tuple[str, ...], made: int) -> Finding:
        """Return L1 for a worker that made ``made`` calls."""
        every, limit = self.together()
        by_call = _joined((f"call {call}", one) for (call, _), one in self._gaps.items())
        by_sequence = _joined((name, one) for (_, name), one in self._gaps.items())
        faults = []
        if not every <= limit:  # a NaN must not pass
            faults.append(f"all logits together are {every:.3g} off (limit {limit:.3g})")
        worst = dict(max(errors.items(), key=_by_error) for errors in (by_call, by_sequence))
        faults += [
            f"the logits of {name} are {error:.3g} off (limit {_EACH * limit:.3g})"
            for name, error in worst.items()
            if not error <= _EACH * limit
        ]
        largest, odd = self._oddest()
        faults += odd
        share = f"{self._count} of {made} calls replayed"
        good = f"{share}: the logits of each sequence are as near to the honest run's as honest are"
        call, sequence = worst.values()
        return rule.finding(
            Status.FAIL if faults else Status.PASS,
            "; ".join(faults) if faults else good,
            measured=f"{every:.3g} of all, worst call {call:.3g}, worst sequence {sequence:.3g}, "
            f"in one call {largest:.3g}",
            honest=f"{self._honest:.3g}",
            limit=f"{self._times:g} times honest, {_EACH * self._times:g} for each call and "
            f"sequence, {OF_A_STEP:g} for one in one call",
            basis="calibrated",
            observer="worker, honest run",
            evidence=evidence,
        )

    def _oddest(self) -> tuple[float, list[str]]:
        """Return the largest distance of a sequence in a call, in usual lengths, and any fault."""
        usual = total(self._gaps.values()).length / math.sqrt(len(self._gaps)) or 1.0
        distances = {where: one.distance / usual for where, one in self._gaps.items()}
        limit = max(OF_A_STEP, USUAL * statistics.median(distances.values()))
        (call, name), largest = max(distances.items(), key=_by_error)
        if largest <= limit:
            return largest, []
        return largest, [
            f"the logits of {name} are {largest:.3g} of their length off in call {call} "
            f"(limit {limit:.3g})"
        ]


def _joined(gaps_of: Iterable[tuple[str, Gap]]) -> dict[str, float]:
    """Return the relative error of all gaps with the same name, added up."""
    by_name: dict[str, list[Gap]] = {}
    for name, one in gaps_of:
        by_name.setdefault(name, []).append(one)
    return {name: total(every).error for name, every in by_name.items()}


def _by_error(named: tuple[object, float]) -> float:
    return math.inf if math.isnan(named[1]) else named[1]
