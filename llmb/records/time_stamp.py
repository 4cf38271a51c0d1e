"""Time stamps of RFC 3161: what is sent to an authority, and what its tokens say.

An authority signs a digest together with the time of its own clock. Two tokens bound a timed
window: what follows from the first was not known before its time, and what the second is over was
known by its time. The library that reads tokens (rfc3161-client) is optional.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from llmb.errors import BundleRefusedError, UnavailableError
from llmb.records.run_record import RepeatTiming, TimeStamps

if TYPE_CHECKING:
    from cryptography.x509 import Certificate
    from rfc3161_client import TimeStampResponse

#: File names within ``evidence/repeat-<n>/``: the authority's answers, in DER.
START, STOP = "start.tsr", "stop.tsr"
#: An answer with three certificates has 6 kB.
MAX_BYTES = 64 * 2**10
#: Media types of a question and an answer over HTTP (RFC 3161, 3.4).
QUERY_TYPE, REPLY_TYPE = "application/timestamp-query", "application/timestamp-reply"
#: Seconds by which a time without a fraction may be off: two such times, cut or rounded in the same
#: way, are at most a second further apart than they say.
_WHOLE_S = 0.5
_GRANTED = 0
#: Share of a run's own figure that a foreign clock should leave at least. An authority with times
#: in whole seconds and an accuracy of one second left 0.90 and 0.92 of windows of 32 and 34 s.
LEAST_SHARE = 0.9
INSTALL = "pip install 'llmb[timestamps]'"


@dataclass(frozen=True)
class Token:
    """An authority's answer, read; whose it is, ``held_to`` tells."""

    #: Over the token alone, in hex.
    sha256: str
    #: The sha256 of the message that it is over.
    imprint: bytes
    time: datetime
    #: Seconds by which the time may be off: the stated accuracy, at least a fraction not told.
    uncertainty_s: float
    #: Whose token it is, by its own account: the number of the certificate, and its issuer.
    authority: str
    response: TimeStampResponse

    @property
    def utc(self) -> str:
        """The time as records have it. Example: "2026-11-27T01:19:44Z"."""
        return self.time.isoformat().replace("+00:00", "Z")


def question(message: bytes, *, with_certificate: bool) -> bytes:
    """Return the request for a time stamp over the sha256 of ``message``, in DER.

    Raises:
        UnavailableError: the library is not installed.
    """
    _needed()
    from rfc3161_client import HashAlgorithm, TimestampRequestBuilder

    builder = TimestampRequestBuilder().data(message).hash_algorithm(HashAlgorithm.SHA256)
    return builder.cert_request(cert_request=with_certificate).build().as_bytes()


def read(answer: bytes, message: bytes) -> Token:
    """Return the token in an authority's ``answer``, which must be over ``message``.

    Its signature is not looked at.

    Raises:
        BundleRefusedError: it is no answer, a refusal, or over something else.
        UnavailableError: the library is not installed.
    """
    _needed()
    from rfc3161_client import decode_timestamp_response

    if len(answer) > MAX_BYTES:
        raise BundleRefusedError(f"the answer has {len(answer)} bytes (at most {MAX_BYTES})")
    try:
        response = decode_timestamp_response(answer)
        if response.status != _GRANTED:
            said = " ".join(response.status_string) or "no reason"
            raise BundleRefusedError(f"the authority refused: status {response.status}, {said}")
        info = response.tst_info
        token = Token(
            sha256=hashlib.sha256(response.time_stamp_token()).hexdigest(),
            imprint=bytes(info.message_imprint.message),
            time=info.gen_time,
            uncertainty_s=_uncertainty_s(response),
            authority=_authority(response),
            response=response,
        )
    except BundleRefusedError:
        raise
    except Exception as error:  # of 30,000 changed tokens some raised KeyError or InvalidVersion
        why = f"{type(error).__name__}: {error}".splitlines()[0]
        raise BundleRefusedError(f"the answer is no time stamp that can be read: {why}") from None
    if token.imprint != hashlib.sha256(message).digest():
        raise BundleRefusedError("the time stamp is over something else")
    return token


def held_to(token: Token, message: bytes, certificates: Sequence[Certificate]) -> str | None:
    """Return why ``token`` is not of an authority in ``certificates``, None where it is.

    Certificates count at the time of the token. A token without a certificate needs the
    authority's own among ``certificates``, one with its chain needs the root alone.
    """
    from rfc3161_client import VerifierBuilder

    signers = {(one.issuer, one.serial_number) for one in token.response.signed_data.signer_infos}
    own = [one for one in certificates if (one.issuer, one.serial_number) in signers]
    verifier = VerifierBuilder(
        roots=[*certificates], tsa_certificate=own[0] if len(own) == 1 else None
    ).build()
    try:
        verifier.verify_message(token.response, message)
    except Exception as error:  # as in ``read``; OpenSSL's stack of errors is cut off
        said = str(error).split(": ErrorStack")[0].splitlines()
        return said[0] if said else type(error).__name__
    return None


def authorities(pem: bytes, name: str) -> list[Certificate]:
    """Return the certificates in a file of them; ``name`` is for messages.

    Raises:
        BundleRefusedError: it holds none.
        UnavailableError: the library is not installed.
    """
    _needed()
    from cryptography.x509 import load_pem_x509_certificates

    try:
        return load_pem_x509_certificates(pem)
    except ValueError as error:
        raise BundleRefusedError(f"{name!r} holds no certificates in PEM: {error}") from None


def start_message(run_id: str, repeat: int, nonce: str) -> bytes:
    """Return what is stamped at START: which repeat of which run it is."""
    return _message({"at": "start", "run_id": run_id, "repeat": repeat, "nonce": nonce})


@dataclass(frozen=True)
class AtStop:
    """What was known of a window when it was over, and is stamped at STOP."""

    nonce: str | None
    warmup_steps: int
    timed_steps: int
    #: The supervisor's stamps of fences and the worker's of steps, up to STOP.
    fence_steps: tuple[int, ...]
    fence_ns: tuple[int, ...]
    step_ns: tuple[int, ...]
    #: Digests of loss and sampled weights at each fence.
    fence_bits: tuple[str, ...]
    #: Digests of each step's gradients; the last step's is told after STOP.
    commitments: tuple[str, ...]

    @classmethod
    def of(cls, timing: RepeatTiming) -> AtStop:
        """Return what a finished repeat knew at its STOP.

        Raises:
            ValueError: it has no fence there.
        """
        stop = timing.warmup_steps + timing.timed_steps
        fences = timing.fence_steps.index(stop) + 1
        return cls(
            nonce=timing.nonce,
            warmup_steps=timing.warmup_steps,
            timed_steps=timing.timed_steps,
            fence_steps=timing.fence_steps[:fences],
            fence_ns=timing.fence_ns[:fences],
            step_ns=timing.step_ns[:stop],
            fence_bits=timing.fence_bits[:fences],
            commitments=timing.commitments[: stop - 1],
        )


def stop_message(run_id: str, repeat: int, start_sha256: str, known: AtStop) -> bytes:
    """Return what is stamped at STOP: the first token, and all that is ``known`` of the window."""
    return _message(
        {
            "at": "stop",
            "run_id": run_id,
            "repeat": repeat,
            "start_sha256": start_sha256,
            **asdict(known),
        }
    )


def said(
    authority: str, start: Token, stop: Token | None, *, mixed_from: int, tokens: int
) -> TimeStamps:
    """Return what the tokens of START and STOP say of a window.

    Args:
        authority: the address they are from.
        start: the token of START.
        stop: that of STOP, None where it did not come.
        mixed_from: the first step whose draws follow from the first token.
        tokens: tokens of the steps from ``mixed_from`` to STOP.

    Nobody can have begun these steps before the first time, and their results were there at the
    second. So they took ``seconds + uncertainty_s`` at most. Example: 512 tokens a step, 49 steps,
    34 s by the authority, whose times have no fraction and no stated accuracy: at least
    512 x 49 / (34 + 1) = 717 tokens/s.
    """
    seconds = uncertainty = rate = None
    if stop is not None:
        seconds = (stop.time - start.time).total_seconds()
        uncertainty = start.uncertainty_s + stop.uncertainty_s
        rate = tokens / (seconds + uncertainty) if seconds + uncertainty > 0 else None
    return TimeStamps(
        authority=authority,
        start_sha256=start.sha256,
        mixed_from=mixed_from,
        start_utc=start.utc,
        stop_utc=stop.utc if stop else None,
        seconds=seconds,
        uncertainty_s=uncertainty,
        tokens_per_second=rate,
    )


def tokens_after(timing: RepeatTiming, mixed_from: int, tokens_per_step: int) -> int:
    """Return the tokens of the steps from ``mixed_from`` to STOP."""
    steps = range(mixed_from, timing.warmup_steps + timing.timed_steps)
    if timing.step_tokens:
        return sum(timing.step_tokens[step] for step in steps)
    return len(steps) * tokens_per_step


def _message(data: dict[str, object]) -> bytes:
    return json.dumps({"schema": "llmb.time-stamp/1", **data}, sort_keys=True).encode()


def _authority(response: TimeStampResponse) -> str:
    return ", ".join(
        f"number {one.serial_number:x} of {one.issuer.rfc4514_string()}"
        for one in response.signed_data.signer_infos
    )


def _uncertainty_s(response: TimeStampResponse) -> float:
    info = response.tst_info
    stated, found = info.accuracy, 0.0
    if stated is not None:
        found = (stated.seconds or 0) + (stated.millis or 0) / 1e3 + (stated.micros or 0) / 1e6
    # Whether a fraction was told the library does not say: of times that have one, one in a
    # thousand is taken for one that has none.
    return found if info.gen_time.microsecond else max(found, _WHOLE_S)


def _needed() -> None:
    try:
        import rfc3161_client  # noqa: F401
    except ImportError:
        raise UnavailableError(f"time stamps need rfc3161-client: {INSTALL}") from None
