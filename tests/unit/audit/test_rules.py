"""The table of rules, and the verdict as a truth table: never a silent pass."""

from __future__ import annotations

from itertools import product

import pytest

from llmb.audit.rules import LIMITS, RULES, complete, verdict, worst
from llmb.records.finding import RULES_VERSION, Finding, Level, Status, Verdict
from tests.unit.builders_runtime import finding

IDS = [rule.id for rule in RULES]


def passing() -> list[Finding]:
    return [finding(rule.id, rule.level, Status.PASS) for rule in RULES]


def test_nothing_observed_leaves_every_rule_unobserved_and_the_run_unverified() -> None:
    audit = complete([])
    assert [f.id for f in audit.findings] == IDS
    assert {f.status for f in audit.findings} == {Status.NOT_OBSERVED}
    assert audit.verdict is Verdict.UNVERIFIED
    assert audit.rules_version == RULES_VERSION
    assert audit.limits == LIMITS


@pytest.mark.parametrize("missing", IDS)
def test_a_rule_that_was_not_observed_is_listed_and_blocks_consistency_if_it_blocks(
    missing: str,
) -> None:
    audit = complete([f for f in passing() if f.id != missing])
    (found,) = (f for f in audit.findings if f.id == missing)
    assert found.status is Status.NOT_OBSERVED
    blocking = found.level is Level.BLOCK
    assert audit.verdict is (Verdict.UNVERIFIED if blocking else Verdict.CONSISTENT)


def test_every_rule_observed_and_kept_is_consistent() -> None:
    assert complete(passing()).verdict is Verdict.CONSISTENT


def test_findings_come_in_the_order_of_the_rules_whatever_order_they_were_made_in() -> None:
    assert [f.id for f in complete(reversed(passing())).findings] == IDS


def test_what_was_observed_is_not_replaced() -> None:
    observed = finding("O1", Level.BLOCK, Status.FAIL, "AdamW.step was replaced")
    audit = complete([observed])
    assert observed in audit.findings
    assert [f.id for f in audit.findings].count("O1") == 1


def test_a_rule_with_two_findings_keeps_both() -> None:
    both = [finding("T2"), finding("T2", Level.FLAG, Status.NOT_OBSERVED)]
    assert [f for f in complete(both).findings if f.id == "T2"] == both


def test_a_blocking_rule_seen_at_a_lower_level_only_is_still_unobserved() -> None:
    others = [f for f in passing() if f.id != "T2"]
    audit = complete([*others, finding("T2", Level.FLAG, Status.PASS)])
    assert audit.verdict is Verdict.UNVERIFIED


def expected(level: Level, status: Status) -> Verdict:
    if level is Level.BLOCK and status is Status.FAIL:
        return Verdict.INVALID
    if level is Level.BLOCK and status is Status.NOT_OBSERVED:
        return Verdict.UNVERIFIED
    if status in (Status.FLAG, Status.FAIL):
        return Verdict.FLAGGED
    return Verdict.CONSISTENT


@pytest.mark.parametrize(("level", "status"), list(product(Level, Status)))
def test_one_finding_among_passing_ones_has_the_verdict_of_the_truth_table(
    level: Level, status: Status
) -> None:
    assert verdict([*passing(), finding("O1", level, status)]) is expected(level, status)


SEVERITY = [Verdict.CONSISTENT, Verdict.FLAGGED, Verdict.UNVERIFIED, Verdict.INVALID]


def test_of_any_two_findings_the_worse_decides_in_either_order() -> None:
    each = list(product(Level, Status))
    for first, second in product(each, each):
        outcomes = [expected(*first), expected(*second)]
        if Level.BLOCK not in (first[0], second[0]):
            outcomes.append(Verdict.UNVERIFIED)  # no blocking rule was looked at
        worse = max(outcomes, key=SEVERITY.index)
        assert verdict([finding("O1", *first), finding("S1", *second)]) is worse


def test_no_set_of_findings_is_ever_called_reproduced() -> None:
    assert Verdict.REPRODUCED not in {expected(*each) for each in product(Level, Status)}


def test_no_finding_at_all_is_no_pass() -> None:
    assert verdict([]) is Verdict.UNVERIFIED


def test_of_several_repeats_the_first_failing_one_speaks_for_the_rule() -> None:
    fine, bad = finding(message="fine"), finding(status=Status.FAIL, message="second")
    assert worst([fine, bad, finding(status=Status.FAIL, message="third")]) is bad
    assert worst([fine, finding(message="also fine")]) is fine
