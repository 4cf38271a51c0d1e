"""One JSON line per message: what is written is read back, and nothing else is."""

from __future__ import annotations

import json

import pytest

from llmb.config import FP32, AuditMode, RankAddress, RunRequest
from llmb.wire import messages
from llmb.wire.messages import (
    AuditRequest,
    CheckBegun,
    Checked,
    CheckOrder,
    Done,
    EvidenceFile,
    Failure,
    Hello,
    HonestOrder,
    OfferOrder,
    Paused,
    Phase,
    Proceed,
    ReferenceOrder,
    Resolved,
    Sampled,
    StepDraw,
    StepOrder,
    Terms,
    Tick,
    Worked,
    WorkOrder,
)
from tests.unit.builders_runtime import fence, offer, readings, run_config

AUDITED = {
    "config": run_config(),
    "seed": 2**63 - 1,
    "passes": ("live", "step-12"),
    "token_seeds": {"live": 1, "step-12": 2},
    "judged": (12,),
    "evidence_folder": "e",
    "scratch_folder": "s",
    "digests": {"weights.json": "0" * 64},
}
EVERY = [
    Hello(nonce="n", pid=1),
    Failure(error="UsageError", message="first\nsecond é"),
    OfferOrder(plugin="cpu", request=RunRequest(batch_size="auto")),
    offer(),
    Resolved(config=run_config()),
    Terms(environment={"A": "1"}, warmup_steps=3, facts={}, peak=None),
    WorkOrder(config=run_config(), evidence_folder="e", collect_evidence=True, scratch_folder="s"),
    StepOrder(index=3, seed=2**63 - 1, fence=True),
    Paused(index=4),
    Paused(index=4, commitment="0" * 64),
    Proceed(),
    StepDraw(places=7, rate=1e-5),
    Sampled(index=3, commitment="e" * 64),
    AuditRequest(seed=2**63 - 1, last=True),
    Phase(name="training"),
    Tick(index=0, ns=5),
    fence(12),
    readings(12, energy_j=1.5, energy_source="counter", energy_scope="device"),
    EvidenceFile(name="weights.json", sha256="0" * 64),
    EvidenceFile(name="live-weights.safetensors", sha256="0" * 64, scratch=True),
    Worked(steps=60),
    HonestOrder(**AUDITED, borders=True, library_modules=("acme",)),
    ReferenceOrder(**AUDITED, stored_dtypes={"w": "float32"}),
    Done(),
    CheckOrder(
        plugin="acme",
        request=RunRequest(),
        device=None,
        reason="no driver",
        precision=FP32,
        environment={"A": "1"},
        checks=("hooks.loads",),
    ),
    CheckBegun(id="hooks.loads"),
    Checked(id="hooks.loads", status="skip", message="first\nsecond"),
]


@pytest.mark.parametrize("message", EVERY, ids=lambda message: message.kind)
def test_every_message_is_one_line_and_is_read_back_equal(message: messages.Message) -> None:
    line = messages.encode(message)
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    again = messages.decode(line)
    assert again == message
    assert type(again) is type(message)


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"{}",
        b"[]",
        b"null",
        b"not json",
        b'{"kind":"shout"}',
        b'{"kind":"audit"}',
        b'{"kind":"audit","seed":"many","last":true}',
        b'{"kind":"audit","seed":1,"last":true,"colour":"blue"}',
        b'{"kind":"tick","index":0,"ns":1.5}',
        b'{"kind":"phase","name":"\xff"}',
    ],
)
def test_a_line_of_another_form_is_a_value_error(line: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        messages.decode(line)


def test_no_two_messages_share_a_kind() -> None:
    kinds = [
        kind.model_fields["kind"].default
        for kind in vars(messages).values()
        if isinstance(kind, type) and "kind" in getattr(kind, "model_fields", {})
    ]
    assert len(kinds) == len(set(kinds)) >= 17


def test_what_a_worker_may_know_holds_no_token_seed_and_no_window() -> None:
    order = WorkOrder(config=run_config(), evidence_folder="", collect_evidence=False)
    assert set(json.loads(messages.encode(order))) == {
        "kind",
        "place",
        "repeat",
        "rank_timeout_s",
        "calls_folder",
        "config",
        "evidence_folder",
        "collect_evidence",
        "scratch_folder",
        "profile_folder",
        "every_step",
        "only",
    }
    assert order.only is None
    assert set(StepOrder.model_fields) == {"kind", "index", "seed", "fence"}
    assert set(AuditRequest.model_fields) == {"kind", "seed", "last"}
    assert set(StepDraw.model_fields) == {"kind", "places", "rate"}


@pytest.mark.parametrize(
    ("rank", "audit", "scratch", "audited"),
    [
        (None, AuditMode.QUICK, "", False),  # a trial of the search
        (None, AuditMode.QUICK, "s", True),
        (0, AuditMode.QUICK, "", False),
        (1, AuditMode.QUICK, "", True),  # what it shows is rank 0's to keep
        (1, AuditMode.OFF, "", False),
    ],
)
def test_a_worker_is_looked_at_where_its_evidence_is_kept_by_it_or_by_rank_0(
    rank: int | None, audit: AuditMode, scratch: str, audited: bool
) -> None:
    at = None
    if rank is not None:
        at = RankAddress(
            rank=rank, world_size=2, local_rank=0, local_world_size=1, host="h", port=1
        )
    config = run_config().model_copy(update={"audit": audit})
    order = WorkOrder(
        config=config, evidence_folder="", collect_evidence=True, scratch_folder=scratch, place=at
    )
    assert order.audited is audited
