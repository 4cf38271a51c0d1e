"""Rules as values: whoever adds one is told which part is missing."""

from __future__ import annotations

import importlib
import json
import pkgutil
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import llmb
import llmb.audit
from llmb.audit import judgement, rules
from llmb.audit.bench import Bench, UnreadableError
from llmb.audit.rule import Evidence, Rule
from llmb.audit.rules import JUDGES, LIMITS, RULES
from llmb.records import audited, evidence
from llmb.records.finding import JUDGED_VERSIONS, RULES_VERSION, Finding, Level, Status
from tests.architecture import rules_page
from tests.unit import builders_audit

ROOT = Path(__file__).resolve().parents[3]
MODULES = [
    importlib.import_module(f"llmb.audit.{found.name}")
    for found in pkgutil.iter_modules(llmb.audit.__path__)
]
PAGE = rules_page.PAGE.read_text(encoding="utf-8")
FACTS = builders_audit.facts(builders_audit.audit_config())

SHOWN = Evidence("imagined.json", json.loads)
Z9 = Rule(
    "Z9",
    Level.FLAG,
    "an imagined thing is three",
    measured="the imagined file",
    cannot_see="what is not in the file",
    evidence=(SHOWN,),
    since=int(RULES_VERSION),
)


def judge(bench: Bench) -> Iterator[Finding]:
    """Yield Z9."""
    number = bench.read(SHOWN)
    kept = number == 3
    yield Z9.finding(Status.PASS if kept else Status.FLAG, str(number), evidence=bench.paths(SHOWN))


def imagined(rule: Rule = Z9) -> Any:
    """Return a judge module that is not in this repository."""
    return SimpleNamespace(RULES=(rule,), judge=judge)


def found(shown: bytes | None, rule: Rule = Z9, **changes: Any) -> list[Finding]:
    """Return the findings of Z9 in a run of two repeats, the first of which shows a three."""
    files = {evidence.path(0, SHOWN.name): b"3", evidence.path(1, SHOWN.name): shown}
    facts = replace(FACTS, repeats=[*FACTS.repeats] * 2, **changes)
    audit = judgement.judge(files.get, facts, [*JUDGES, imagined(rule)]).audit
    return [finding for finding in audit.findings if finding.id == "Z9"]


@pytest.mark.parametrize(("shown", "status"), [(b"3", "pass"), (b"4", "flag")])
def test_the_loop_asks_a_judge_that_it_has_never_seen(shown: bytes, status: str) -> None:
    (finding,) = found(shown)
    assert (finding.status.value, finding.level) == (status, Level.FLAG)
    assert finding.message == shown.decode()
    assert finding.observer == "worker"


def test_without_evidence_of_every_repeat_a_rule_is_not_observed() -> None:
    (finding,) = found(None)
    assert finding.status is Status.NOT_OBSERVED
    assert finding.message == "not observed: an imagined thing is three"


def test_a_rule_of_other_modes_is_not_applicable_and_its_judge_is_not_asked() -> None:
    (finding,) = found(b"4", replace(Z9, modes=frozenset({"forward"})))
    assert finding.status is Status.NOT_APPLICABLE


def test_a_rule_of_the_run_is_judged_once() -> None:
    (finding,) = found(b"4", replace(Z9, per_run=True))
    assert finding.message == "3"


def test_evidence_that_is_no_json_is_unreadable_and_named() -> None:
    with pytest.raises(UnreadableError, match=r"evidence/repeat-1/imagined\.json"):
        found(b"{")


def test_a_run_of_earlier_rules_is_judged_without_a_later_one() -> None:
    later = replace(Z9, since=int(RULES_VERSION) + 1)
    assert found(b"4", later) == []
    (finding,) = found(b"4", later, rules_version=str(later.since))
    assert finding.status is Status.FLAG


def test_a_mode_that_does_not_exist_is_refused() -> None:
    workload = FACTS.workload.model_copy(update={"mode": "pretend"})
    with pytest.raises(UnreadableError, match="pretend"):
        judgement.judge({}.get, replace(FACTS, workload=workload))


def test_the_page_shows_a_rule_that_it_has_never_seen() -> None:
    row = "| [Z9](#z9) | flag | an imagined thing is three | `imagined.json` |\n"
    assert row in rules_page.table([Z9])
    section = rules_page.sections([replace(Z9, limit="none (such as 1; 2); two. Three")])
    assert "\n**Measured as**: the imagined file.\n" in section
    assert "\n**Limit**\n\n- None (such as 1; 2)\n- Two\n- Three\n" in section
    assert "\n**Cannot see**: what is not in the file.\n" in section


# -- what is missing ------------------------------------------------------------------------


def test_every_module_with_rules_is_a_judge_that_the_bench_asks() -> None:
    with_rules = {module.__name__ for module in MODULES if "RULES" in vars(module)}
    asked = {module.__name__ for module in JUDGES if isinstance(module, ModuleType)}
    assert with_rules - {rules.__name__} == asked, "add it to JUDGES in llmb/audit/rules.py"


def test_every_rule_has_one_id_of_its_own_and_says_all_there_is_to_say() -> None:
    ids = [rule.id for rule in RULES]
    assert len({*ids}) == len(ids), "two rules have one id"
    for rule in RULES:
        assert re.fullmatch(r"[A-Z]+[1-9][0-9]*", rule.id), f"{rule.id}: letters and a number"
        texts = (rule.title, rule.measured, rule.limit, rule.cannot_see, rule.observer)
        assert all(texts), f"{rule.id}: title, measured, limit, cannot_see and observer are needed"
        texts = (*texts, *rule.causes)
        assert not any("|" in text or "\n" in text for text in texts), f"{rule.id}: one cell each"


def test_every_rule_that_can_accuse_says_two_honest_causes() -> None:
    for rule in RULES:
        wanted = 0 if rule.level is Level.NOTE else 2
        assert len({*rule.causes}) == wanted, f"{rule.id}: causes, the likelier first"


def test_a_judge_has_rules_of_one_kind() -> None:
    mixed = [judge for judge in JUDGES if len({rule.per_run for rule in judge.RULES}) != 1]
    assert not mixed, "rules of a repeat and of the run (`per_run`) are two judges' work"


def test_the_version_of_the_rules_is_that_of_the_latest_rule() -> None:
    latest = max(rule.since for judge in JUDGES for rule in judge.RULES)
    assert latest <= int(RULES_VERSION), f'add "{latest}" to JUDGED_VERSIONS in llmb/audit/rule.py'
    assert [*JUDGED_VERSIONS] == sorted(JUDGED_VERSIONS, key=int)


def test_committed_bundles_have_a_finding_of_every_rule_of_their_version() -> None:
    records = sorted((ROOT / "submissions").rglob("record.json"))
    if not records:
        pytest.skip("no submissions beside these tests")
    for path in records:
        audit = json.loads(path.read_bytes())["audit"]
        version = audit["rules_version"]
        if version in JUDGED_VERSIONS:
            wanted = {rule.id for rule in rules.declared(JUDGES, version)}
            assert {finding["id"] for finding in audit["findings"]} == wanted, (
                f"a rule came after version {version}: say since={int(RULES_VERSION) + 1}, and add "
                f'"{int(RULES_VERSION) + 1}" to JUDGED_VERSIONS in llmb/audit/rule.py'
            )


FILES = sorted({file.name: rule.id for rule in RULES for file in rule.evidence}.items())


@pytest.mark.parametrize(("name", "rule"), FILES)
def test_some_process_writes_the_evidence_that_a_rule_needs(name: str, rule: str) -> None:
    constants = [
        f"{room.__name__.rpartition('.')[2]}.{key}"
        for room in (evidence, audited)
        for key, value in vars(room).items()
        if value == name
    ]
    assert constants, f"{rule} needs {name}: name it in llmb/records/evidence.py"
    package, apart = Path(llmb.__file__).parent, {"audit", "records", "submission"}
    observers = [
        path
        for path in package.rglob("*.py")
        if path.relative_to(package).parts[0] not in apart
        and any(f"{constant}," in path.read_text(encoding="utf-8") for constant in constants)
    ]
    assert observers, f"{rule} needs {name}, and nothing writes {' or '.join(constants)}"


def test_the_page_of_rules_is_what_the_judges_say() -> None:
    assert rules_page.rendered(PAGE) == PAGE, f"docs/rules.md is not current: {rules_page.COMMAND}"


def test_the_page_says_what_no_audit_can_see() -> None:
    words = " ".join(PAGE.split())
    assert all(limit in words for limit in LIMITS)
