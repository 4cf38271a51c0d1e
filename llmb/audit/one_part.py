"""Findings of a rule for single parts of the model, to narrow down a failure.

The limits are the rule's own. The evidence comes from a run, or from a repetition (``llmb audit
--only``), which does not count in any verdict.
"""

from __future__ import annotations

from llmb.audit import equivalence, ledger, precision
from llmb.audit.bench import GRADIENTS, HONEST, Bench, UnreadableError
from llmb.audit.precision import ROUGH
from llmb.audit.rule import PartFinding
from llmb.formats import UNKNOWN

#: Passes that each rule needs. Rules missing here judge only whole runs.
PASSES = {
    "E1": ("live",),
    "E2": precision.PROBES,
    "P1": precision.PROBES,
    "L1": ("live",),
}


def parts(rule: str, bench: Bench) -> tuple[PartFinding, ...]:
    """Return the findings of ``rule`` for each part, the worst first; empty without evidence.

    Raises:
        UnreadableError: the honest run is too rough, or evidence is not in the form llmb writes.
    """
    reference, seen, honest = bench.reference, bench.read(GRADIENTS), bench.read(HONEST)
    fmt = bench.facts.precision
    if reference is None or seen is None or honest is None:
        return ()
    if fmt.judged_as is None:
        raise UnreadableError(UNKNOWN)
    try:
        if rule in ("E2", "P1"):
            shared = bench.facts.parallelism.is_shared
            probes = precision.Probes(seen, honest, reference, fmt, (), shared=shared)
            if not probes.honest_is_honest():
                raise UnreadableError(probes.why_rough)
            found = [*probes.parts(classes=rule == "P1")]
        else:
            on_host = bench.facts.on_host
            if not equivalence.is_plausible(honest, reference, fmt, on_host=on_host):
                raise UnreadableError(ROUGH)
            of_step = equivalence.live_parts(seen, honest, reference, fmt, bench.sums)
            found = [*(of_step if rule == "E1" else ledger.parts(bench))]
    except (KeyError, IndexError, TypeError, ValueError, ArithmeticError) as error:
        raise UnreadableError(f"evidence does not hold what it must ({error})") from error
    return tuple(sorted(found, key=lambda one: -one.badness))
