"""L1 where nothing is trained: logits of every call, held to those of an honest run."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from safetensors.torch import load, save

from llmb.audit.bench import UnreadableError
from llmb.config import BF16, FP32, Mode
from llmb.records import audited, evidence
from llmb.records.audited import LedgerEvidence
from llmb.records.canonical import pretty_bytes
from llmb.records.finding import Finding, Level, Status
from tests.unit import builders_audit
from tests.unit.builders_audit import DRAWN, END, Audited, examine, small_vocabulary, worked

__all__ = ["small_vocabulary", "worked"]  # fixtures
pytestmark = pytest.mark.usefixtures("small_vocabulary")
LEDGER = evidence.path(0, audited.LEDGER)
VALUES = evidence.path(0, audited.LEDGER_VALUES)
REPLAYED = evidence.path(0, audited.REPLAYED)
SIZE, ELEMENTS = 4, 64
CASES = {
    "forward": {"mode": Mode.FORWARD},
    "generate": {
        "mode": Mode.GENERATE,
        "prompt_length": 3,
        "new_tokens": 5,
        "generate_scope": "step",
    },
}
Change = Callable[[torch.Tensor], object]


@pytest.fixture(scope="module")
def judged_run(
    worked: Callable[..., Audited], tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., Audited]:
    known: dict[str, Audited] = {}

    def of(case: str = "forward", **changes: Any) -> Audited:
        key = repr((case, changes))
        if key not in known:
            with pytest.MonkeyPatch.context() as patch:
                builders_audit.make_small(patch)
                folder = tmp_path_factory.mktemp("judged")
                made = worked(batch_size=SIZE, **CASES[case], **changes)
                known[key] = examine(made.copied(folder))
        found = known[key]
        return replace(found, files=dict(found.files))

    return of


@pytest.fixture
def run(judged_run: Callable[..., Audited]) -> Audited:
    return judged_run(precision=BF16)


def rewritten(run: Audited, change: Change) -> Finding:
    """Return L1 where the worker had read something else, and had committed to that.

    ``change`` is given the rows in the order of the calls.
    """
    turn = DRAWN.calls_compared(END + 1)
    rows = torch.empty_like(load(run.files[VALUES])[audited.ROWS])
    rows[list(turn)] = load(run.files[VALUES])[audited.ROWS]
    change(rows)
    run.files[VALUES] = save({audited.ROWS: rows[list(turn)]})
    told = tuple(hashlib.sha256(row.numpy().tobytes()).hexdigest() for row in rows)
    timing = run.facts.repeats[0].model_copy(update={"commitments": told})
    return replace(run, facts=replace(run.facts, repeats=[timing])).finding("L1")


def of_sequence(number: int) -> slice:
    return slice(ELEMENTS * number, ELEMENTS * number + ELEMENTS)


@pytest.mark.parametrize("precision", [BF16, FP32], ids=lambda p: p.name)
@pytest.mark.parametrize("case", CASES)
def test_an_honest_run_passes(
    judged_run: Callable[..., Audited], case: str, precision: Any
) -> None:
    found = judged_run(case, precision=precision).finding("L1")
    assert (found.level, found.status) == (Level.BLOCK, Status.PASS)
    assert found.message.startswith("13 of 13 calls replayed")


@pytest.mark.parametrize("case", CASES)
def test_one_sequence_with_the_logits_of_another_call_fails_and_is_named(
    judged_run: Callable[..., Audited], case: str
) -> None:
    def old(rows: torch.Tensor) -> None:
        rows[7, of_sequence(2)] = rows[6, of_sequence(2)]

    found = rewritten(judged_run(case, precision=BF16), old)
    assert found.status is Status.FAIL
    assert "the logits of sequence 2 are" in found.message
    assert "in call 7" in found.message


@pytest.mark.parametrize("case", CASES)
def test_one_call_with_the_logits_of_another_fails_and_is_named(
    judged_run: Callable[..., Audited], case: str
) -> None:
    def old(rows: torch.Tensor) -> None:
        rows[3, : SIZE * ELEMENTS] = rows[2, : SIZE * ELEMENTS]

    found = rewritten(judged_run(case, precision=BF16), old)
    assert found.status is Status.FAIL
    assert "the logits of call 3 are" in found.message


def test_one_sequence_that_is_a_twentieth_off_in_every_call_fails(run: Audited) -> None:
    found = rewritten(run, lambda rows: rows[:, of_sequence(1)].mul_(1.06))
    assert found.status is Status.FAIL
    assert "the logits of sequence 1 are 0.06 off" in found.message


def test_logits_a_hundredth_too_large_pass_as_rounding_does(run: Audited) -> None:
    assert rewritten(run, lambda rows: rows.mul_(1.01)).status is Status.PASS


def test_in_float32_a_hundred_thousandth_fails(judged_run: Callable[..., Audited]) -> None:
    found = rewritten(judged_run(precision=FP32), lambda rows: rows.mul_(1 + 2e-5))
    assert found.status is Status.FAIL


@pytest.mark.parametrize("value", [float("nan"), float("inf")], ids=str)
def test_what_is_no_number_never_passes(run: Audited, value: float) -> None:
    assert rewritten(run, lambda rows: rows[3, :64].fill_(value)).status is Status.FAIL


def test_logits_of_zero_fail(run: Audited) -> None:
    assert rewritten(run, lambda rows: rows.zero_()).status is Status.FAIL


def test_other_tokens_than_those_that_were_committed_to_fail(
    judged_run: Callable[..., Audited],
) -> None:
    run = judged_run("generate", precision=BF16)
    rows = load(run.files[VALUES])[audited.ROWS]
    rows[5, -1] += 1
    run.files[VALUES] = save({audited.ROWS: rows})
    found = run.finding("L1")
    assert found.status is Status.FAIL
    call = DRAWN.calls_compared(END + 1)[5]
    assert found.message == f"what is shown of step {call} is not what was committed to"


WORDS = slice(-2 - SIZE * 5, -2)


@pytest.mark.parametrize("precision", [BF16, FP32], ids=lambda p: p.name)
def test_words_that_the_logits_and_the_noise_do_not_give_fail(
    judged_run: Callable[..., Audited], precision: Any
) -> None:
    def made_up(rows: torch.Tensor) -> None:
        rows[:, WORDS] += 1

    found = rewritten(judged_run("generate", precision=precision), made_up)
    assert found.status is Status.FAIL
    assert "260 of the 260 words together are not drawn from the logits" in found.message


def test_the_words_of_a_single_call_that_were_not_drawn_fail(
    judged_run: Callable[..., Audited],
) -> None:
    def made_up(rows: torch.Tensor) -> None:
        rows[7, WORDS] += 1

    found = rewritten(judged_run("generate", precision=BF16), made_up)
    assert found.status is Status.FAIL
    assert "20 of the 20 words of call 7 are not drawn from the logits" in found.message


def test_a_few_words_that_rounding_draws_otherwise_pass(
    judged_run: Callable[..., Audited],
) -> None:
    def nearly(rows: torch.Tensor) -> None:
        rows[7, WORDS][:3] += 1

    assert rewritten(judged_run("generate", precision=BF16), nearly).status is Status.PASS


def test_a_call_that_was_left_out_of_the_evidence_fails(run: Audited) -> None:
    rows = load(run.files[VALUES])[audited.ROWS]
    run.files[VALUES] = save({audited.ROWS: rows[:-1].contiguous()})
    found = run.finding("L1")
    assert found.message == "12 steps are shown, 13 were committed to"
    assert found.status is Status.FAIL


@pytest.mark.parametrize(("case", "name"), [("forward", "tokens"), ("generate", "sequence 0")])
def test_a_ledger_that_calls_logits_tokens_is_unreadable(
    judged_run: Callable[..., Audited], case: str, name: str
) -> None:
    run = judged_run(case, precision=BF16)
    told = LedgerEvidence.model_validate_json(run.files[LEDGER])
    last = told.segments[-1].model_copy(update={"name": name})
    segments = (*told.segments[:-1], last)
    run.files[LEDGER] = pretty_bytes(told.model_copy(update={"segments": segments}))
    with pytest.raises(UnreadableError, match="not those of sequences"):
        run.judge()


def test_fewer_calls_made_again_than_were_drawn_are_not_enough(run: Audited) -> None:
    rows = load(run.files[REPLAYED])[audited.ROWS]
    run.files[REPLAYED] = save({audited.ROWS: rows[:2].contiguous()})
    assert run.finding("L1").status is Status.NOT_OBSERVED


def test_calls_that_nobody_made_again_are_not_observed(run: Audited) -> None:
    del run.files[REPLAYED]
    assert run.finding("L1").status is Status.NOT_OBSERVED


def test_a_worker_that_left_no_logits_is_not_observed(run: Audited) -> None:
    del run.files[VALUES]
    assert run.finding("L1").status is Status.NOT_OBSERVED
