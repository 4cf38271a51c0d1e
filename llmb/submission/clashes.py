"""Two bundles of one tree must be two runs: without a common run id, nonce or evidence.

Evidence is compared after parsing. Only values that no two honest runs share count: values that
follow from the seeds llmb draws in every run.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from llmb.config import Frozen
from llmb.errors import BundleRefusedError
from llmb.records import arrays, audited, evidence
from llmb.records.bundle import Bundle
from llmb.records.run_record import RunRecord
from llmb.submission.history import Arrival

#: Numbers at sampled indices, with signs, of tokens: each follows from a drawn seed of 63 bits.
_DRAWN = (
    audited.PROBED,
    audited.GRADIENTS,
    audited.STEP_VALUES,
    audited.HONEST,
    audited.REFERENCE,
    audited.DEVICE_REFERENCE,
)
#: With a nonce, tokens and learning rates follow from the nonce; without a nonce, from the run's
#: seed, and two runs may share a seed.
_OF_THE_NONCE = (
    *(audited.REPLAY, audited.LEDGER_VALUES, audited.REPLAYED, audited.RECOMPUTED),
    audited.JUDGED,
)


class Content(Frozen):
    """Content that no other run has."""

    run_id: str
    #: One nonce per repeat; none in records of rules 2 and older.
    nonces: tuple[str, ...]
    #: Path of an evidence file in the bundle -> digest of the parsed content.
    evidence: dict[str, str]


@dataclass(frozen=True)
class Placed:
    """A bundle that passed every check, and the bundle's place."""

    #: The path as shown to people.
    path: str
    place: Path
    bundle_id: str
    content: Content


def content_of(bundle: Bundle, record: RunRecord) -> Content:
    """Return the unique content of ``bundle``; unreadable evidence is left out."""
    repeats = record.timing.repeats
    found = {}
    for n, timing in enumerate(repeats):
        names = _DRAWN if timing.nonce is None else (*_DRAWN, *_OF_THE_NONCE)
        for path in (evidence.path(n, name) for name in names):
            digest = _digest(bundle, path) if path in bundle.files else None
            if digest is not None:
                found[path] = digest
    nonces = tuple(repeat.nonce for repeat in repeats if repeat.nonce is not None)
    return Content(run_id=record.run_id, nonces=nonces, evidence=found)


def _digest(bundle: Bundle, path: str) -> str | None:
    try:
        if path.endswith(".json"):
            value = json.dumps(bundle.json(path), sort_keys=True)
            return hashlib.sha256(value.encode()).hexdigest()
        return arrays.content_digest(bundle.files[path])
    except (BundleRefusedError, ValueError):
        return None


def clashes(
    members: Sequence[Placed], arrival: Callable[[Path], Arrival | None]
) -> dict[Path, str]:
    """Return why a bundle is no run of its own, by place; sound bundles are absent.

    Of bundles that share content, the first by ``arrival`` stays. A bundle without an arrival came
    after all bundles with an arrival. If the first bundle is unknown, none stays. A bundle and the
    zip in the same folder count as one bundle.

    Args:
        members: bundles that passed every check.
        arrival: when the bundle at a place came into its repository, None if unknown. Called only
            for bundles that share content.
    """
    sharing: defaultdict[tuple[str, str], list[tuple[Placed, str]]] = defaultdict(list)
    for member in members:
        for kind, value, words in _marks(member.content):
            sharing[kind, value].append((member, words))
    known: dict[Path, Arrival | None] = {}
    found: dict[Path, str] = {}
    for group in sharing.values():
        if len({_twin(member) for member, _ in group}) < 2:
            continue
        for member, _ in group:
            if member.place not in known:
                known[member.place] = arrival(member.place)
        first = _first([member for member, _ in group], known)
        for member, words in group:
            if first is not None and _twin(member) == _twin(first):
                continue
            other = first or next(m for m, _ in group if _twin(m) != _twin(member))
            nobody = "" if first else ", and no history tells which was there first"
            found.setdefault(member.place, f"its {words} is that of {other.path!r}{nobody}")
    return found


def _marks(content: Content) -> Iterator[tuple[str, str, str]]:
    """Yield kind, value and words of all content that no other run has."""
    yield "run", content.run_id, "run id"
    for nonce in dict.fromkeys(content.nonces):
        yield "nonce", nonce, "nonce"
    for digest, path in {digest: path for path, digest in content.evidence.items()}.items():
        yield "evidence", digest, path


def _twin(member: Placed) -> tuple[str, str]:
    """Return the key that only a bundle and the bundle's zip share."""
    return member.bundle_id, os.path.realpath(member.place).removesuffix(".zip")


def _first(members: Sequence[Placed], known: Mapping[Path, Arrival | None]) -> Placed | None:
    """Return the bundle that arrived before all others, None if unknown."""
    arrived = [(when, member) for member in members if (when := known[member.place]) is not None]
    if len({when.repository for when, _ in arrived}) != 1:
        return None
    earliest = min(when.position for when, _ in arrived)
    first = [member for when, member in arrived if when.position == earliest]
    return first[0] if len({_twin(member) for member in first}) == 1 else None
