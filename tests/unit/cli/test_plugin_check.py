"""What ``llmb plugin check`` prints of checks: each in its line, skips for one reason in one."""

from __future__ import annotations

from llmb.cli.plugin_check import _lines
from llmb.sdk.report import Outcome


def outcome(title: str, status: str, message: str) -> Outcome:
    return Outcome.model_validate(
        {"id": title, "title": title, "status": status, "message": message}
    )


def test_only_checks_that_were_skipped_in_a_row_for_one_reason_share_a_line() -> None:
    outcomes = [
        outcome("options", "pass", ""),
        outcome("patches", "pass", ""),
        outcome("memory", "skip", "no device"),
        outcome("telemetry", "skip", "no counter"),
        outcome("a run", "skip", "no run was agreed on"),
        outcome("two runs", "skip", "no run was agreed on"),
    ]
    assert list(_lines(outcomes)) == [
        ("pass", "options", ""),
        ("pass", "patches", ""),
        ("skip", "memory", "no device"),
        ("skip", "telemetry", "no counter"),
        ("skip", "2 checks", "no run was agreed on"),
    ]
