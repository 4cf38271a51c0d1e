"""What the audit's passes leave behind: written and read back equal, and nothing else accepted."""

from __future__ import annotations

import json

import pytest
from pydantic import ValidationError

from llmb.config import Frozen
from llmb.records import audited, evidence
from llmb.records.audited import (
    AuditedStep,
    PristineDigest,
    PristineEvidence,
    ProbedEvidence,
    Segment,
    StepsEvidence,
)
from llmb.records.canonical import pretty_bytes

STEP = AuditedStep(
    index=12,
    token_seed=2**63 - 1,
    seed=5,
    weights_kept=True,
    steps_before=None,
    foreach=None,
    fused=True,
    capturable=False,
    segments=(Segment(name="w", dtype="bfloat16", gradients=1024, states=257),),
)
EVERY = [
    StepsEvidence(steps=(STEP,), pause_ns=2**40, longest_pause_ns=7),
    ProbedEvidence(
        seed=2**63 - 1, last_step=3, token_seed=4, passes=("live", "branches"), missing=("live/w",)
    ),
    PristineEvidence(
        parameters=(
            PristineDigest(
                name="w", shape=(2, 3), dtype="bfloat16", sha256="0" * 64, largest_move=1e-5
            ),
        )
    ),
]


@pytest.mark.parametrize("value", EVERY, ids=lambda value: type(value).__name__)
def test_what_is_written_is_read_back_equal(value: Frozen) -> None:
    assert type(value).model_validate_json(pretty_bytes(value)) == value


@pytest.mark.parametrize("value", EVERY, ids=lambda value: type(value).__name__)
def test_a_field_that_nobody_knows_is_refused(value: Frozen) -> None:
    data = json.loads(pretty_bytes(value)) | {"colour": "blue"}
    with pytest.raises(ValidationError, match="colour"):
        type(value).model_validate(data)


def test_evidence_cannot_be_changed_once_it_is_made() -> None:
    with pytest.raises(ValidationError):
        STEP.index = 1


@pytest.mark.parametrize("bad", ["NaN", "Infinity", '"far"'])
def test_a_move_that_is_no_number_is_refused(bad: str) -> None:
    text = pretty_bytes(EVERY[2]).decode().replace("1e-05", bad).replace("0.00001", bad)
    assert bad in text
    with pytest.raises(ValidationError):
        PristineEvidence.model_validate_json(text)


def test_no_two_files_of_the_evidence_have_one_name_and_weights_are_no_evidence() -> None:
    rooms = (audited, evidence)
    names = [
        value
        for room in rooms
        for key, value in vars(room).items()
        if key.isupper() and isinstance(value, str) and "." in value
    ]
    assert len(names) == len(set(names)) >= 17
    assert audited.LIVE_WEIGHTS in names


def test_what_only_calibrator_and_verifier_may_write_are_files_of_their_own() -> None:
    each = audited.BY_HONEST_RUN, audited.BY_REFERENCE_RUN, audited.BY_REPETITION
    assert len(audited.NOT_BY_WORKER) == sum(map(len, each))
    workers = {
        audited.GRADIENTS,
        audited.PROBED,
        audited.STEP_VALUES,
        audited.STEPS,
        evidence.WEIGHTS,
        evidence.OPTIMIZER,
        evidence.NAMESPACE,
    }
    assert not workers & audited.NOT_BY_WORKER
    own = {audited.REFERENCE, audited.PRISTINE, audited.RECOMPUTED}
    assert own == audited.BY_REFERENCE_RUN
    assert {audited.HONEST, audited.REPLAY} < audited.BY_HONEST_RUN


def test_that_nothing_was_omitted_may_be_said() -> None:
    types = {"executed": [], "compiled": [], "compiled_frames": 0, "unread_frames": 0}
    assert evidence.TypesEvidence.model_validate({**types, "omitted": 0}).omitted == 0
