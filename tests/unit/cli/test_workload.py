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


@pytest.mark.parametrize("name", ["llama-1.4b", "alcf-1t", "nemo-bert-base"])
def test_every_convention_is_shown_with_what_it_counts_and_its_source(name: str) -> None:
    text = shown(name)
    for convention in CONVENTIONS.values():
        assert convention.counts in text
        assert f"{convention.name} is from: {convention.source}" in text


def test_the_convention_of_the_document_is_marked() -> None:
    own = CONVENTIONS[WORKLOADS["gpt2-125m"].convention]
    assert f"{own.counts} <- the document's own" in shown("gpt2-125m")


def test_the_notes_of_a_workload_are_shown() -> None:
    text = shown("litgpt-train")
    for note in WORKLOADS["litgpt-train"].notes:
        assert f"note: {note}" in text


def test_bytes_are_told_in_terabytes_from_one_on() -> None:
    assert (workload._bytes(1e12), workload._bytes(0.99e12)) == ("1.00 TB", "990.00 GB")
