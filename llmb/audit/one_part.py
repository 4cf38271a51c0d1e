"""What a rule says of each part of the model by itself: what an accusation can be broken down to.

It is judged with the limits of the rule, from the evidence of a run, or from that of a repetition
(``llmb audit --only``), which is no part of any verdict.
"""

from __future__ import annotations

from llmb.audit import equivalence, ledger, precision
from llmb.audit.bench import GRADIENTS, HONEST, Bench, UnreadableError
from llmb.audit.precision import ROUGH
from llmb.audit.rule import PartFinding
from llmb.formats import UNKNOWN

#: Passes that each rule needs. Rules that are not here look at a run as a whole.
PASSES = {
    "E1": ("live",),
    "E2": precision.PROBES,
    "P1": precision.PROBES,
    "L1": ("live",),
}


def parts(rule: str, bench: Bench) -> tuple[PartFinding, ...]:
    """Return what ``rule`` says of each part, the worst first; nothing without the evidence.

    Raises:
        UnreadableError: what should be honest is not, or the evidence is not what llmb writes.
    """
    reference, seen, honest = bench.reference, bench.read(GRADIENTS), bench.read(HONEST)
    fmt = bench.facts.precision
    if reference is None or seen is None or honest is None:
        return ()
    if fmt.judged_as is None:
        raise UnreadableError(UNKNOWN)
    try:
        if rule in ("E2", "P1"):
            probes = precision.Probes(seen, honest, reference, fmt, ())
            if not probes.honest_is_honest():
                raise UnreadableError(ROUGH)
            found = [*probes.parts(classes=rule == "P1")]
        else:
            if not equivalence.is_plausible(honest, reference, fmt):
                raise UnreadableError(ROUGH)
            of_step = equivalence.live_parts(seen, honest, reference, fmt)
            found = [*(of_step if rule == "E1" else ledger.parts(bench))]
    except (KeyError, IndexError, TypeError, ValueError, ArithmeticError) as error:
        raise UnreadableError(f"evidence does not hold what it must ({error})") from error
    return tuple(sorted(found, key=lambda one: -one.badness))
