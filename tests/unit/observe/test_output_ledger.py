"""The ledger of calls: logits of every sequence, at places told in the pause of the call."""

from __future__ import annotations

import hashlib

import pytest
import torch
from torch import Tensor

from llmb.observe.output_ledger import OutputLedger, logits_at
from llmb.observe.outputs import Output, OutputWitness
from llmb.records.audited import TOKENS
from llmb.records.places import ELEMENTS

SIZE = torch.Size((3, 5, 101))


def logits(dtype: torch.dtype = torch.float32, size: torch.Size = SIZE) -> Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(1)).to(dtype)


def ledger_of(*outputs: Output) -> OutputLedger:
    witness = OutputWitness()
    ledger = OutputLedger(witness)
    for seed, output in enumerate(outputs):
        witness.show(output)
        ledger.take(seed, 0.0)
    return ledger


def test_a_row_has_as_many_logits_of_each_sequence() -> None:
    ledger = ledger_of(Output(logits()))
    told = {segment.name: segment.elements for segment in ledger.evidence().segments}
    assert told == {f"sequence {n}": ELEMENTS for n in range(3)}
    assert ledger.rows().shape == (1, 3 * ELEMENTS)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_what_was_read_is_what_lay_at_the_places_of_the_call(dtype: torch.dtype) -> None:
    shown = logits(dtype)
    rows, positions, words = logits_at(0, SIZE)
    assert torch.equal(ledger_of(Output(shown)).rows()[0], shown[rows, positions, words].float())


def test_each_call_is_read_at_places_of_its_own() -> None:
    rows = ledger_of(Output(logits()), Output(logits())).rows()
    assert not torch.equal(rows[0], rows[1])


def test_a_sequence_is_read_at_other_places_than_its_neighbour() -> None:
    _, positions, words = logits_at(4, SIZE)
    flat = (positions * SIZE[2] + words).view(3, -1)
    assert not torch.equal(flat[0], flat[1])


@pytest.mark.parametrize(("sequences", "each"), [(1, 64), (128, 64), (1152, 7), (20_000, 1)])
def test_every_sequence_is_read_however_many_there_are(sequences: int, each: int) -> None:
    rows = logits_at(3, torch.Size((sequences, 7, 50)))[0]
    assert rows.bincount().tolist() == [each] * sequences


def test_where_a_sequence_has_few_logits_none_is_counted_beyond_its_last() -> None:
    _, positions, words = logits_at(3, torch.Size((2, 2, 5)))
    assert (positions.max() < 2, words.max() < 5, len(words)) == (True, True, 20)


def test_tokens_that_were_drawn_end_a_row() -> None:
    tokens = torch.arange(15).view(3, 5)
    ledger = ledger_of(Output(logits(), tokens))
    last = ledger.evidence().segments[-1]
    assert (last.name, last.elements) == (TOKENS, 15)
    assert ledger.rows()[0, -15:].tolist() == [*range(15)]


def test_logits_of_a_transposed_memory_are_read_by_sequence() -> None:
    shown = logits()
    turned = shown.transpose(0, 1).contiguous().transpose(0, 1)
    assert torch.equal(ledger_of(Output(turned)).rows(), ledger_of(Output(shown)).rows())


def test_a_commitment_is_the_digest_of_the_row_that_was_read() -> None:
    ledger = ledger_of(Output(logits()))
    told = ledger.commitment()
    assert told == hashlib.sha256(ledger.rows()[0].numpy().tobytes()).hexdigest()


def test_logits_that_change_after_they_were_read_change_no_commitment() -> None:
    shown = logits()
    ledger, other = ledger_of(Output(shown)), ledger_of(Output(logits()))
    shown.zero_()
    assert ledger.commitment() == other.commitment()


def test_calls_of_several_lengths_have_rows_of_one() -> None:
    longer = torch.Size((3, 9, 101))
    assert ledger_of(Output(logits()), Output(logits(size=longer))).rows().shape[0] == 2
