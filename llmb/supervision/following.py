"""The supervisor of a rank from 1 up: starts the rank's worker and waits for the worker's end."""

from __future__ import annotations

import tempfile
import time

from llmb.config import RankAddress, last_line_file
from llmb.errors import LlmbError
from llmb.parallel.place import UNREACHABLE
from llmb.records.lacks import Lacks
from llmb.supervision import interconnect
from llmb.supervision.negotiation import Negotiated, for_children
from llmb.supervision.run_phases import Display
from llmb.supervision.stream import Patience
from llmb.wire.child import Child
from llmb.wire.messages import Phase, Tick, Worked, WorkOrder

#: Seconds that rank 0 gets to find the failed rank.
_GRACE_S = 10.0


def follow(
    negotiated: Negotiated,
    place: RankAddress,
    rank_timeout_s: float,
    display: Display,
    *,
    profile: bool = False,
) -> None:
    """Run a worker for rank ``place`` in every repeat of the run, and measure the links before.

    With ``profile``, the worker of the first repeat traces one more step. All ranks run the traced
    step together, and only rank 0's trace is kept. Example: rank 3 of 8 writes a trace, and the
    trace is removed with the temporary folder.

    Raises:
        LlmbError: the worker failed.
    """
    try:
        with tempfile.TemporaryFile() as log:
            interconnect.measure(
                negotiated, negotiated.config, place, rank_timeout_s, log, lambda note: None
            )
    except LlmbError as error:
        raise _told_late(place, error) from error
    line = last_line_file()
    # After a kill of this rank, the launching process removes the folder.
    beside = None if line is None else line.parent
    for number in range(negotiated.config.repeats):
        with (
            tempfile.TemporaryDirectory(prefix="llmb-rank-", dir=beside) as folder,
            tempfile.TemporaryFile() as log,
            Child("llmb.processes.worker", negotiated.terms.environment, log) as child,
        ):
            child.send(
                WorkOrder(
                    config=for_children(negotiated.config),
                    evidence_folder=folder,
                    collect_evidence=True,
                    profile_folder=folder if profile and number == 0 else "",
                    place=place,
                    repeat=number,
                    rank_timeout_s=rank_timeout_s,
                )
            )
            try:
                _look_after(child, display, negotiated.offer.lacks)
            except LlmbError as error:
                raise _told_late(place, error) from error


def _told_late(place: RankAddress, error: LlmbError) -> LlmbError:
    """Return ``error`` with the number of the rank, after a time for rank 0 to report first.

    Rank 0's error names the failed rank, such as rank 3, and a launcher ends rank 0 as soon as this
    process has ended.
    """
    if UNREACHABLE not in str(error):
        time.sleep(_GRACE_S)
    return type(error)(f"rank {place.rank}: {error}")


def _look_after(child: Child, display: Display, lacks: Lacks) -> None:
    patience = Patience(lacks)
    while not isinstance(message := child.receive(1.0), Worked):
        patience.heard(message)
        if isinstance(message, (Phase, Tick)):
            display.message(message)
