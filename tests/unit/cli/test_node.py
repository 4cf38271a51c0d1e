"""How ``llmb node`` says no: exit code 7, the first reason, and how many more there are."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

from llmb.cli import node, node_tables
from llmb.errors import RequirementError
from llmb.node import examination
from llmb.records import canonical
from llmb.records.node_report import NodeDevice


def refusal(monkeypatch: pytest.MonkeyPatch, folder: Path, *reasons: str) -> str | None:
    """Return the words of the refusal of a report with ``reasons``; None where it is fit."""
    report = SimpleNamespace(reasons=reasons)
    monkeypatch.setattr(node, "_plan", lambda arguments, flags: SimpleNamespace(folder=folder))
    monkeypatch.setattr(examination, "examine", lambda plan, shown: report)
    monkeypatch.setattr(canonical, "pretty_bytes", lambda report: b"{}\n")
    ended = CliRunner().invoke(node.command, ["--json", "--quiet"])
    if ended.exception is None:
        return None
    assert isinstance(ended.exception, RequirementError)
    return str(ended.exception)


def test_a_fit_node_is_not_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert refusal(monkeypatch, tmp_path) is None


@pytest.mark.parametrize(
    ("reasons", "words"),
    [
        (["slow"], "this node is not fit: slow"),
        (["slow", "hot"], "this node is not fit: slow (and 1 more)"),
        (["slow", "hot", "lost"], "this node is not fit: slow (and 2 more)"),
    ],
)
def test_the_first_reason_is_told_and_how_many_more_there_are(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, reasons: list[str], words: str
) -> None:
    assert refusal(monkeypatch, tmp_path, *reasons) == words
    assert (tmp_path / "node.json").exists()


def test_a_device_is_described_or_left_blank() -> None:
    devices = [
        NodeDevice(index=0, name="warp:0", description="Warp Drive 9"),
        NodeDevice(index=1, name="warp:1", description=None),
    ]
    report: Any = SimpleNamespace(devices=devices)
    described = list(node_tables._devices(report).columns[1].cells)
    assert [str(text) for text in described] == ["Warp Drive 9", ""]
