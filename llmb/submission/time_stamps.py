"""The time stamps of a bundle, checked offline: do the tokens fit, and who made the tokens?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from llmb.errors import BundleRefusedError
from llmb.records import evidence, members, time_stamp
from llmb.records.bundle import Bundle
from llmb.records.run_record import RepeatTiming, RunRecord, TimeStamps
from llmb.records.time_stamp import START, STOP, AtStop, Token

if TYPE_CHECKING:
    from cryptography.x509 import Certificate

#: Beside the submitters' folders: PEM certificates of the authorities with trusted clocks.
AUTHORITIES = "authorities.pem"
_NAMES = (START, STOP)


def listed(path: Path) -> list[Certificate]:
    """Return the certificates in the file at ``path``.

    Raises:
        BundleRefusedError: the file cannot be read, or holds no certificate.
        UnavailableError: the library that reads tokens is not installed.
    """
    return time_stamp.authorities(members.read_file(path), str(path))


def has_any(bundle: Bundle, record: RunRecord) -> bool:
    """Tell whether the bundle has a time stamp, or a file named like a time stamp."""
    repeats = record.timing.repeats
    return any(repeat.time_stamps for repeat in repeats) or any(
        evidence.path(n, name) in bundle.files for n in range(len(repeats)) for name in _NAMES
    )


def faults(bundle: Bundle, record: RunRecord) -> Iterator[str]:
    """Yield a sentence for each contradiction between tokens and record.

    Raises:
        BundleRefusedError: a token cannot be read, or covers other data.
        UnavailableError: the library that reads tokens is not installed.
    """
    for n, timing in enumerate(record.timing.repeats):
        said = timing.time_stamps
        due = set() if said is None else {START, *((STOP,) if said.stop_utc else ())}
        there = {name for name in _NAMES if evidence.path(n, name) in bundle.files}
        for name in sorted(due - there):
            yield f"{evidence.path(n, name)} is missing"
        for name in sorted(there - due):
            yield f"{evidence.path(n, name)} is there, and the record does not speak of it"
        if said is None or due != there:
            continue
        stop = timing.warmup_steps + timing.timed_steps
        # The first timed step was ordered before the token was requested.
        if not timing.warmup_steps < said.mixed_from < stop:
            yield f"repeat {n}: mixed in from step {said.mixed_from}, not within the window"
            continue
        tokens = dict(_tokens(bundle, record, n, timing, said))
        counted = time_stamp.tokens_after(timing, said.mixed_from, record.workload.tokens_per_step)
        right = time_stamp.said(
            said.authority,
            tokens[START],
            tokens.get(STOP),
            mixed_from=said.mixed_from,
            tokens=counted,
        )
        for (field, theirs), (_, ours) in zip(said, right, strict=True):
            if theirs != ours:
                yield f"time_stamps.{field} of repeat {n} is {theirs!r}, its tokens say {ours!r}"
        if right.seconds is not None and right.seconds < 0:
            yield f"repeat {n} was over before it began, by its authority's clock"


def strangers(
    bundle: Bundle, record: RunRecord, certificates: Sequence[Certificate]
) -> Iterator[str]:
    """Yield a sentence for each token without an authority in ``certificates``.

    The tokens must have no ``faults``.
    """
    for n, timing in enumerate(record.timing.repeats):
        if timing.time_stamps is None:
            continue
        messages = _messages(record, n, timing, timing.time_stamps)
        for name, token in _tokens(bundle, record, n, timing, timing.time_stamps):
            why = time_stamp.held_to(token, messages[name], certificates)
            if why is not None:
                path = evidence.path(n, name)
                yield f"{path} is of {token.authority}, which is not listed: {why}"


def bound(bundle: Bundle, record: RunRecord, certificates: Sequence[Certificate]) -> float | None:
    """Return the least tokens/s of the headline's window, by an authority's clock.

    None if a token is missing, has ``faults``, or has no authority in ``certificates``.
    """
    said = record.timing.repeats[record.timing.headline_repeat].time_stamps
    if said is None or not certificates or any(faults(bundle, record)):
        return None
    return None if any(strangers(bundle, record, certificates)) else said.tokens_per_second


def described(bundle: Bundle, record: RunRecord) -> str:
    """Return rates, times and authorities as text for a reader; tokens must have no ``faults``."""
    parts = []
    for n, timing in enumerate(record.timing.repeats):
        said = timing.time_stamps
        if said is None:
            parts.append(f"repeat {n} has none")
        elif said.tokens_per_second is None:
            parts.append(f"repeat {n} has none at STOP")
        else:
            parts.append(
                f"at least {said.tokens_per_second:,.1f} tokens/s in repeat {n}, from "
                f"{said.start_utc} to {said.stop_utc}"
            )
    signers = dict.fromkeys(
        token.authority
        for n, timing in enumerate(record.timing.repeats)
        if timing.time_stamps is not None
        for _, token in _tokens(bundle, record, n, timing, timing.time_stamps)
    )
    return f"{'; '.join(parts)}; signed with certificate {'; '.join(signers)}"


def _tokens(
    bundle: Bundle, record: RunRecord, repeat: int, timing: RepeatTiming, said: TimeStamps
) -> Iterator[tuple[str, Token]]:
    for name, message in _messages(record, repeat, timing, said).items():
        path = evidence.path(repeat, name)
        try:
            yield name, time_stamp.read(bundle.files[path], message)
        except BundleRefusedError as error:
            raise BundleRefusedError(f"{path}: {error}") from None


def _messages(
    record: RunRecord, repeat: int, timing: RepeatTiming, said: TimeStamps
) -> dict[str, bytes]:
    """Return the data that each token of a repeat must cover."""
    run_id = record.run_id
    found = {START: time_stamp.start_message(run_id, repeat, timing.nonce or "")}
    if said.stop_utc is not None:
        known = AtStop.of(timing)
        found[STOP] = time_stamp.stop_message(run_id, repeat, said.start_sha256, known)
    return found
