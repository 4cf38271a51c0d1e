"""Asks a time-stamping authority over HTTP, in a background thread: no step waits for an answer."""

from __future__ import annotations

import secrets
import threading
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import dataclass, field

from llmb.errors import BundleRefusedError, LlmbError, UnavailableError, UsageError
from llmb.records import time_stamp
from llmb.records.time_stamp import Token

#: Seconds to wait for an answer; an authority takes 0.1 to 1 s.
PATIENCE_S = 10.0


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Refuses redirects: an answer must come from the requested address."""

    def redirect_request(self, *_: object) -> None:
        return None


@dataclass(frozen=True)
class TimeAuthority:
    """The address of an authority, such as https://freetsa.org/tsr, and the form of requests."""

    url: str
    #: Whether to request certificates. Some authorities send certificates in an order refused by
    #: rfc3161-client: from these authorities no certificate is requested.
    with_certificate: bool = True

    @classmethod
    def at(cls, url: str) -> TimeAuthority:
        """Return the authority at ``url``.

        Raises:
            UsageError: ``url`` is no address of a web server, or has a user, password, query or
                fragment.
        """
        try:
            parts = urllib.parse.urlsplit(url)
            odd = parts.scheme not in ("http", "https") or not parts.hostname
            port = parts.port
        except ValueError:
            odd, port = True, None
        if odd or port == 0 or not url.isprintable() or " " in url:
            raise UsageError(
                f"--timestamp {url!r}: give the address of a time-stamping authority, "
                "such as https://freetsa.org/tsr"
            )
        if parts.username or parts.password or parts.query or parts.fragment:
            raise UsageError(
                f"--timestamp {parts.hostname}: an address without user, password, ? and #: "
                "it is published with the run"
            )
        return cls(url)

    def tried(self) -> TimeAuthority:
        """Return the authority with the form of request that got a readable answer.

        The request with certificates is tried first, then the request without certificates.

        Raises:
            UnavailableError: the authority does not answer, or the answer is not readable.
        """
        message, why = secrets.token_bytes(16), ""
        for way in (self, TimeAuthority(self.url, with_certificate=False)):
            try:
                time_stamp.read(way.ask(message), message)
            except BundleRefusedError as error:
                why = str(error)
            else:
                return way
        raise UnavailableError(f"{self.url}: {why}")

    def ask(self, message: bytes) -> bytes:
        """Return the authority's answer over ``message``, unchanged.

        Raises:
            UnavailableError: no answer came, or an HTTP error such as 404.
        """
        asked = time_stamp.question(message, with_certificate=self.with_certificate)
        request = urllib.request.Request(
            self.url, data=asked, headers={"Content-Type": time_stamp.QUERY_TYPE}
        )
        try:
            opener = urllib.request.build_opener(_NoRedirects)
            with opener.open(request, timeout=PATIENCE_S) as reply:
                answer: bytes = reply.read(time_stamp.MAX_BYTES + 1)
        except urllib.error.HTTPError as error:
            error.close()
            raise UnavailableError(f"{self.url} answers {error.code} {error.reason}") from None
        except (OSError, ValueError) as error:  # also http.client's errors for a bad answer
            reason = getattr(error, "reason", None) or error
            raise UnavailableError(f"{self.url} does not answer: {reason}") from None
        return answer


@dataclass
class Asked:
    """A request sent to the authority, with the answer after arrival."""

    authority: TimeAuthority
    message: bytes
    #: The answer in DER and the token in the answer, or the failure.
    answer: bytes | None = None
    token: Token | None = None
    failure: str | None = None
    _thread: threading.Thread = field(init=False)

    def __post_init__(self) -> None:
        # A daemon thread: an ended run does not wait for an authority.
        self._thread = threading.Thread(target=self._ask, name="llmb-time-stamp", daemon=True)
        self._thread.start()

    @property
    def came(self) -> Token | None:
        """The token, or None before arrival; the property never waits."""
        return None if self._thread.is_alive() else self.token

    def wait(self) -> Token | None:
        """Return the token after waiting for the answer; None without a token."""
        self._thread.join(PATIENCE_S + 1)
        return self.came

    def _ask(self) -> None:
        try:
            self.answer = self.authority.ask(self.message)
            self.token = time_stamp.read(self.answer, self.message)
        except LlmbError as error:
            self.failure = str(error)
