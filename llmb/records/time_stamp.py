"""Time stamps of RFC 3161: requests to an authority, and the content of the authority's tokens.

An authority signs a digest together with the time of the authority's clock. Two tokens bound a
timed window: draws from the first token were unknown before the token's time, and the content of
the second token was known by the token's time. The library for tokens (rfc3161-client) is optional.
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
#: way, have a true distance of at most a second more than the stated distance.
_WHOLE_S = 0.5
_GRANTED = 0
#: Share of a run's own figure that a foreign clock should leave at least. Example: an authority
#: with whole seconds and an accuracy of one second left 0.90 and 0.92 of windows of 32 and 34 s.
LEAST_SHARE = 0.9
INSTALL = "pip install 'llmb[timestamps]'"


@dataclass(frozen=True)
class Token:
    """An authority's parsed answer; ``held_to`` checks the signature."""

    #: Over the token alone, in hex.
    sha256: str
    #: The sha256 of the stamped message.
    imprint: bytes
    time: datetime
    #: Seconds by which the time may be off: the stated accuracy, at least a missing fraction.
    uncertainty_s: float
    #: The authority, as stated in the token: number and issuer of the certificate.
    authority: str
    response: TimeStampResponse

    @property
    def utc(self) -> str:
        """The time in the form of records. Example: "2026-11-27T01:19:44Z"."""
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

    The signature is not checked.

    Raises:
        BundleRefusedError: no answer, a refusal, or a token over another message.
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
    """Return why ``token`` is not from an authority in ``certificates``, None for a valid token.

    Certificates count at the time of the token. A token without a certificate needs the
    authority's own certificate in ``certificates``; a token with a chain needs the root alone.
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
    """Return the certificates in a PEM file; ``name`` is for messages.

    Raises:
        BundleRefusedError: the file holds no certificate.
        UnavailableError: the library is not installed.
    """
    _needed()
    from cryptography.x509 import load_pem_x509_certificates

    try:
        return load_pem_x509_certificates(pem)
    except ValueError as error:
        raise BundleRefusedError(f"{name!r} holds no certificates in PEM: {error}") from None


def start_message(run_id: str, repeat: int, nonce: str) -> bytes:
    """Return the message stamped at START, with the run and the number of the repeat."""
    return _message({"at": "start", "run_id": run_id, "repeat": repeat, "nonce": nonce})


@dataclass(frozen=True)
class AtStop:
    """The known facts of a window at the end, which are stamped at STOP."""

    nonce: str | None
    warmup_steps: int
    timed_steps: int
    #: The supervisor's stamps of fences and the worker's of steps, up to STOP.
    fence_steps: tuple[int, ...]
    fence_ns: tuple[int, ...]
    step_ns: tuple[int, ...]
    #: Digests of loss and sampled weights at each fence.
    fence_bits: tuple[str, ...]
    #: Digests of each step's gradients; the last step's digest comes after STOP.
    commitments: tuple[str, ...]

    @classmethod
    def of(cls, timing: RepeatTiming) -> AtStop:
        """Return the known facts of a finished repeat at STOP.

        Raises:
            ValueError: the repeat has no fence at STOP.
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
    """Return the message stamped at STOP: the first token, and the ``known`` facts."""
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
    """Return the window's times and rate by the tokens of START and STOP.

    Args:
        authority: the address that sent the tokens.
        start: the token of START.
        stop: the token of STOP, None if the token did not come.
        mixed_from: the first step with draws from the first token.
        tokens: tokens of the steps from ``mixed_from`` to STOP.

    Nobody can have begun these steps before the first time, and the results existed at the second
    time. The steps took at most ``seconds + uncertainty_s``. Example: 512 tokens a step, 49 steps,
    34 s by an authority with whole seconds and no stated accuracy: at least
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
    # The library does not report whether a fraction was stated: of times with a fraction, one in a
    # thousand (a fraction of 0) counts as a time without.
    return found if info.gen_time.microsecond else max(found, _WHOLE_S)


def _needed() -> None:
    try:
        import rfc3161_client  # noqa: F401
    except ImportError:
        raise UnavailableError(f"time stamps need rfc3161-client: {INSTALL}") from None
