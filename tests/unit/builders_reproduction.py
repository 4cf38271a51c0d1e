"""Two honest runs of one configuration: an original, and a repetition that links to it."""

from __future__ import annotations

from typing import Any

from llmb.records.finding import Verdict
from llmb.records.reproduction import ReproductionOf
from llmb.records.run_record import RunRecord
from llmb.reproduction.links import Member
from tests import builders

ORIGINAL_ID, REPETITION_ID = "a" * 64, "b" * 64
THEIR_KEY, OUR_KEY = frozenset({"SHA256:theirs"}), frozenset({"SHA256:ours"})


def consistent(run_id: str = "0" * 32, rate: float = 1000.0, **changes: Any) -> RunRecord:
    """Return the record of an official CONSISTENT run with a throughput of ``rate``."""
    record = builders.make_record(repeats=1, run_id=run_id)
    result = {"tokens_per_second": rate, "ci95": (rate * 0.99, rate * 1.01)}
    return record.model_copy(
        update={
            "audit": record.audit.model_copy(update={"verdict": Verdict.CONSISTENT}),
            "precision": record.precision.model_copy(update={"effective": "BF16"}),
            "result": record.result.model_copy(update=result),
            # Of each run its own, as of every run whose seed is drawn.
            "config": record.config.model_copy(update={"seed": int(run_id, 16) % 2**63}),
            **changes,
        }
    )


def linked(record: RunRecord, original: RunRecord, bundle_id: str = ORIGINAL_ID) -> RunRecord:
    """Return ``record`` with the link that the supervisor would have written."""
    rate = original.result.tokens_per_second
    link = ReproductionOf(
        bundle_id=bundle_id,
        run_id=original.run_id,
        tokens_per_second=rate,
        ci95=original.result.ci95,
        difference_percent=(record.result.tokens_per_second / rate - 1) * 100,
    )
    return record.model_copy(update={"reproduction_of": link})


def pair(rate: float = 1020.0, **changes: Any) -> tuple[Member, Member]:
    """Return an original and a repetition for which every condition of REPRODUCED holds."""
    original = consistent()
    again = linked(consistent("1" * 32, rate, **changes), original)
    return (
        Member(ORIGINAL_ID, original, THEIR_KEY, "their-lab", "Their Lab"),
        Member(REPETITION_ID, again, OUR_KEY, "our-lab", "Our Lab"),
    )
