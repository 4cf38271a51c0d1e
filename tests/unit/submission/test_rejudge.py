"""The audit that a bundle claims beside the one its evidence supports: what may differ."""

from __future__ import annotations

import pytest

from llmb.audit.rules import RULES
from llmb.records.finding import JUDGED_VERSIONS, Level, Status
from llmb.submission.rejudge import differences
from tests import builders

NOTES = [rule.id for rule in RULES if rule.level is Level.NOTE]


@pytest.fixture(scope="module")
def judged():
    """Return an audit as the evidence supports it."""
    return builders.make_record(repeats=1).audit


def claimed(judged, rule, *findings):
    """Return ``judged`` with a finding of ``rule`` for each of ``findings``, which are changes."""
    (ours,) = [finding for finding in judged.findings if finding.id == rule]
    at = judged.findings.index(ours)
    changed = tuple(ours.model_copy(update=changes) for changes in findings)
    every = (*judged.findings[:at], *changed, *judged.findings[at + 1 :])
    return judged.model_copy(update={"findings": every})


def said(judged, rule, *findings):
    return list(differences(claimed(judged, rule, *findings), judged))


def test_an_audit_does_not_differ_from_itself(judged):
    assert list(differences(judged, judged)) == []


@pytest.mark.parametrize("rule", NOTES)
@pytest.mark.parametrize("status", ["note", "not_observed", "not_applicable"])
def test_of_context_more_may_be_said_than_was_judged(judged, rule, status):
    assert said(judged, rule, {"status": Status(status), "message": "steal 1 %"}) == []


@pytest.mark.parametrize("rule", NOTES)
@pytest.mark.parametrize("status", ["pass", "fail", "flag"])
def test_a_result_claimed_under_a_note_is_not_believed(judged, rule, status):
    (found,) = said(judged, rule, {"status": Status(status), "message": "all is well"})
    assert found.startswith(f"{rule} is {status} (note: all is well), the evidence supports ")


@pytest.mark.parametrize("rule", NOTES)
@pytest.mark.parametrize("level", ["block", "flag"])
def test_a_note_made_a_finding_of_more_weight_is_not_believed(judged, rule, level):
    (found,) = said(judged, rule, {"status": Status.NOTE, "level": Level(level)})
    assert found.startswith(f"{rule} is note ({level}: ")


@pytest.mark.parametrize("rule", NOTES)
def test_one_note_beside_a_claimed_result_does_not_make_that_believed(judged, rule):
    (found,) = said(judged, rule, {"status": Status.NOTE}, {"status": Status.PASS})
    assert found.startswith(f"{rule} is note ")


@pytest.mark.parametrize("rule", NOTES)
def test_context_that_was_left_out_is_missed(judged, rule):
    (found,) = said(judged, rule)
    assert found.startswith(f"{rule} is missing, the evidence supports ")


@pytest.mark.parametrize("rule", ["W1", "K1"])
def test_a_finding_of_weight_made_context_is_not_believed(judged, rule):
    (found,) = said(judged, rule, {"status": Status.NOTE, "level": Level.NOTE})
    assert found.startswith(f"{rule} is note (note: ")


@pytest.mark.parametrize("rule", [rule.id for rule in RULES if rule.level is not Level.NOTE])
def test_of_every_other_rule_not_a_word_may_differ(judged, rule):
    place = next(i for i, finding in enumerate(judged.findings) if finding.id == rule)
    every = list(judged.findings)
    every[place] = every[place].model_copy(update={"message": "all is well"})
    (found,) = differences(judged.model_copy(update={"findings": tuple(every)}), judged)
    assert found.startswith(f"{rule} is ")
    assert "all is well" in found


@pytest.mark.parametrize(("status", "believed"), [("fail", True), ("flag", True), ("pass", False)])
def test_rules_that_were_in_force_before_may_have_accused_in_other_words(judged, status, believed):
    earlier = judged.model_copy(update={"rules_version": JUDGED_VERSIONS[0]})
    ours = claimed(earlier, "E1", {"status": Status(status), "message": "2 times as far off"})
    theirs = claimed(earlier, "E1", {"status": Status(status), "message": "all is well"})
    assert (list(differences(theirs, ours)) == []) is believed
