"""``llmb audit``: every finding with its figures, and 5 for an INVALID run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from llmb.audit.rules import RULES
from llmb.cli.audit import command
from llmb.errors import AuditInvalidError, UsageError
from llmb.records.canonical import pretty_bytes
from tests import builders

RECORD = builders.make_record(1)


@pytest.fixture
def shown(tmp_path: Path) -> Any:
    def call(*arguments: str, verdict: str | None = None) -> Result:
        record = RECORD
        if verdict is not None:
            record = builders.edited(record, lambda data: data["audit"].update(verdict=verdict))
        (tmp_path / "record.json").write_bytes(pretty_bytes(record))
        return CliRunner().invoke(command, [str(tmp_path / "record.json"), *arguments])

    return call


def test_every_rule_is_shown_with_its_result_and_what_no_audit_can_see(shown: Any) -> None:
    done = shown()
    assert done.exit_code == 0
    assert all(f"{rule.id} " in done.stdout for rule in RULES)
    assert "What no audit can see:" in done.stdout
    assert all(limit in done.stdout for limit in RECORD.audit.limits)
    assert done.stdout.rstrip().endswith(f"verdict: {RECORD.audit.verdict.value}")


@pytest.mark.parametrize("asked", ["T1", "t1"])
def test_one_rule_alone_is_shown_with_its_figures(shown: Any, asked: str) -> None:
    (t1,) = (finding for finding in RECORD.audit.findings if finding.id == "T1")
    text = shown("--rule", asked).stdout
    assert f"measured: {t1.measured}" in text
    assert f"limit: {t1.limit} (fixed)" in text
    assert f"honest: {t1.honest}" in text
    assert "by supervisor" in text
    assert "T1 cannot see: a faked kernel clock" in text
    assert "O1 " not in text
    assert "What no audit can see" not in text


def test_known_cheats_of_a_rule_are_told_for_the_mode_of_the_run(shown: Any) -> None:
    text = shown("--rule", "L1").stdout
    assert "known to pass in mode train:\n  2.1 times the tokens/s (from products): " in text
    assert "INT8 copy" not in text, "that is a hole of mode generate"


def test_json_is_the_audit_and_of_the_rules_that_were_asked_for(shown: Any) -> None:
    whole = json.loads(shown("--json").stdout)
    assert whole == json.loads(pretty_bytes(RECORD.audit))
    two = json.loads(shown("--json", "--rule", "O1", "--rule", "T2").stdout)
    assert {finding["id"] for finding in two["findings"]} == {"O1", "T2"}


def test_a_rule_that_is_none_is_a_usage_error_with_those_there_are(shown: Any) -> None:
    error = shown("--rule", "Z9").exception
    assert isinstance(error, UsageError)
    assert "--rule Z9: there is no such rule (there are " in str(error)


@pytest.mark.parametrize("flags", [(), ("--json",)], ids=["text", "json"])
def test_an_invalid_run_is_shown_and_ends_in_5(shown: Any, flags: tuple[str, ...]) -> None:
    done = shown(*flags, verdict="INVALID")
    assert isinstance(done.exception, AuditInvalidError)
    assert "INVALID" in done.stdout


@pytest.mark.parametrize("verdict", ["FLAGGED", "UNVERIFIED", "CONSISTENT"])
def test_any_other_verdict_ends_in_0(shown: Any, verdict: str) -> None:
    assert shown(verdict=verdict).exit_code == 0
