"""Two bundles of one tree are two runs: they share no run id, no nonce, and no evidence.

Evidence is compared after parsing, and only what no two honest runs have in common counts: what
follows from seeds that llmb draws in every run.
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

#: Numbers at places, with signs, of tokens: all three follow from a seed of 63 bits that is drawn.
_DRAWN = (
    audited.PROBED,
    audited.GRADIENTS,
    audited.STEP_VALUES,
    audited.HONEST,
    audited.REFERENCE,
    audited.DEVICE_REFERENCE,
)
#: Where there is a nonce, tokens and learning rates follow from it; without one, from the seed of
#: the run, which two runs may share.
_OF_THE_NONCE = (audited.REPLAY, audited.LEDGER_VALUES, audited.REPLAYED, audited.RECOMPUTED)


class Content(Frozen):
    """What no other run has."""

    run_id: str
    #: Of each repeat; none in records of rules 2 and older.
    nonces: tuple[str, ...]
    #: Path of an evidence file in the bundle -> digest of what it says.
    evidence: dict[str, str]


@dataclass(frozen=True)
class Placed:
    """A bundle that passed every check, and where it lies."""

    #: As it is shown.
    path: str
    place: Path
    bundle_id: str
    content: Content


def content_of(bundle: Bundle, record: RunRecord) -> Content:
    """Return what of ``bundle`` no other run has; evidence that cannot be read is left out."""
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
    """Return why a bundle is no run of its own, by its place; nothing of sound ones.

    Of bundles that share something, the one that came first by ``arrival`` stays. A bundle that has
    no arrival came after all that have one. Where nothing decides, none stays. A bundle and the zip
    beside it are one.

    Args:
        members: bundles that passed every check.
        arrival: when the bundle at a place came into its repository, None where nothing tells. It
            is asked of bundles that share something, and of no other.
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
    """Yield kind, value and words of everything that no other run has."""
    yield "run", content.run_id, "run id"
    for nonce in dict.fromkeys(content.nonces):
        yield "nonce", nonce, "nonce"
    for digest, path in {digest: path for path, digest in content.evidence.items()}.items():
        yield "evidence", digest, path


def _twin(member: Placed) -> tuple[str, str]:
    """Return what a bundle and the zip beside it have in common, and nobody else."""
    return member.bundle_id, os.path.realpath(member.place).removesuffix(".zip")


def _first(members: Sequence[Placed], known: Mapping[Path, Arrival | None]) -> Placed | None:
    """Return the one that was there before all others, None where nothing tells."""
    arrived = [(when, member) for member in members if (when := known[member.place]) is not None]
    if len({when.repository for when, _ in arrived}) != 1:
        return None
    earliest = min(when.position for when, _ in arrived)
    first = [member for when, member in arrived if when.position == earliest]
    return first[0] if len({_twin(member) for member in first}) == 1 else None
