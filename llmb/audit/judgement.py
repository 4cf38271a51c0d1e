"""Judge a whole run by every rule, from evidence files and values of the run record.

The supervisor judges a run with this module. Verifying a bundle repeats the judgement.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from llmb.audit import precision_recipe, rules
from llmb.audit.bench import Bench, Facts, Files, UnreadableError
from llmb.audit.precision import Measured
from llmb.audit.rules import Judge
from llmb.config import Mode
from llmb.records.finding import Audit, Finding, Status
from llmb.records.precision_recipe import PrecisionRecipe
from llmb.records.run_record import PrecisionBits


@dataclass(frozen=True)
class Judgement:
    """The audit, and the measured precision (None: not measured)."""

    audit: Audit
    effective: str | None
    bits: PrecisionBits
    precision_observed: bool
    #: Measured rounding of each matrix product; None: no probe measured products.
    precision_recipe: PrecisionRecipe | None = None


def judge(files: Files, facts: Facts, judges: Iterable[Judge] = rules.JUDGES) -> Judgement:
    """Return the audit of a run from the evidence files and the facts of the record.

    Raises:
        UnreadableError: an evidence file is not in the form llmb writes.
    """
    per_repeat, measured = [], []
    try:
        for repeat in range(len(facts.repeats)):
            bench = Bench(files, facts, repeat)
            per_repeat.append([*_findings(bench, judges, per_run=False)])
            measured.append(bench.measured)
        recipe = precision_recipe.recipe_of(Bench(files, facts, 0))
    except (KeyError, IndexError, TypeError, ValueError, ArithmeticError) as error:
        raise UnreadableError(
            f"evidence does not hold what it must ({type(error).__name__}: {error})"
        ) from error
    found = [*_worst_of(per_repeat), *_findings(Bench(files, facts, 0), judges, per_run=True)]
    lowest = _lowest(measured)
    complete = None not in measured
    return Judgement(
        audit=rules.complete(found, facts.workload.mode, judges, facts.rules_version),
        effective=lowest.effective if complete and lowest else None,
        bits=lowest.bits if lowest else PrecisionBits(),
        precision_observed=complete and lowest is not None,
        precision_recipe=recipe,
    )


def _findings(bench: Bench, judges: Iterable[Judge], *, per_run: bool) -> Iterator[Finding]:
    """Yield the findings of each judge with a rule for this mode and evidence for the rule."""
    mode = Mode(bench.facts.workload.mode).value  # raises for an unknown mode
    for judge in judges:
        known = rules.declared([judge], bench.facts.rules_version)
        asked = (rule for rule in known if rule.per_run is per_run and mode in rule.modes)
        if any(map(bench.shows, asked)):
            later = {rule.id for rule in judge.RULES} - {rule.id for rule in known}
            yield from (found for found in judge.judge(bench) if found.id not in later)


def _worst_of(per_repeat: Sequence[Sequence[Finding]]) -> Iterator[Finding]:
    """Yield each rule's worst finding; without a finding in every repeat, only a failure."""
    keys = dict.fromkeys((f.id, f.level) for findings in per_repeat for f in findings)
    for key in keys:
        found = [[f for f in findings if (f.id, f.level) == key] for findings in per_repeat]
        worst = rules.worst([f for findings in found for f in findings])
        if all(found) or worst.status is Status.FAIL:
            yield worst


def _lowest(measured: Iterable[Measured | None]) -> Measured | None:
    """Return the measurement with the fewest bits."""
    return min(
        filter(None, measured),
        key=lambda m: min(m.bits.forward_min or 0, m.bits.gradient_min or 0),
        default=None,
    )
