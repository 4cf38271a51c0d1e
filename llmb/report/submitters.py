"""How the bundles of each submitter were judged."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import PurePosixPath

from llmb.records.finding import Verdict
from llmb.report.board import Board

#: Titles of the table, from the best verdict to the worst.
OUTCOMES = (*(verdict.value for verdict in reversed(Verdict)), "debug", "not verified", "refused")


@dataclass(frozen=True)
class SubmitterVerdicts:
    """The number of bundles of one submitter, by outcome."""

    submitter: str
    #: In the order of ``OUTCOMES``. A debug run counts as debug, whatever its verdict.
    counts: tuple[int, ...]


def verdicts(board: Board) -> tuple[SubmitterVerdicts, ...]:
    """Return a line per submitter, the submitter with most bundles first.

    A refused bundle proves nothing of its submitter, and counts for the folder that holds it.
    """
    found: dict[str, Counter[str]] = {}
    for row in board.rows:
        outcome = "debug" if row.class_ == "debug" else row.verdict.value
        found.setdefault(row.submitter or "unknown submitter", Counter())[outcome] += 1
    for one in board.refused:
        parts = PurePosixPath(one.path).parts
        folder = parts[-4] if len(parts) >= 4 else "unknown submitter"
        outcome = "not verified" if one.is_unread else "refused"
        found.setdefault(folder, Counter())[outcome] += 1
    lines = [
        SubmitterVerdicts(name, tuple(counts[outcome] for outcome in OUTCOMES))
        for name, counts in found.items()
    ]
    return tuple(sorted(lines, key=lambda line: (-sum(line.counts), line.submitter)))
