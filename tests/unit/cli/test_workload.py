"""``llmb workload show`` says how a document counts work and where that formula is from."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from llmb.cli import workload
from llmb.workloads import WORKLOADS
from llmb.workloads.conventions import CONVENTIONS


def shown(name: str) -> str:
    result = CliRunner().invoke(workload.command, ["show", name])
    assert result.exit_code == 0, result.output
    return " ".join(result.output.split())  # where lines break says nothing


@pytest.mark.parametrize("name", WORKLOADS)
def test_the_source_of_the_documents_own_convention_is_shown(name: str) -> None:
    own = CONVENTIONS[WORKLOADS[name].convention]
    assert f"{own.name}: {own.counts}; from {own.source}" in shown(name)


def test_every_convention_is_shown_with_its_own_source() -> None:
    text = shown("llama-1.4b")
    for convention in CONVENTIONS.values():
        assert convention.counts in text
        assert convention.source in text


def test_the_notes_of_a_workload_are_shown() -> None:
    text = shown("litgpt-train")
    for note in WORKLOADS["litgpt-train"].notes:
        assert f"note: {note}" in text
