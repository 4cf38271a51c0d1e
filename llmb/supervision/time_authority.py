"""Asks a time-stamping authority over HTTP, beside the run: no step waits for an answer."""

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

#: Seconds for one answer; an authority takes 0.1 to 1.
PATIENCE_S = 10.0


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """An answer comes from where it was asked for."""

    def redirect_request(self, *_: object) -> None:
        return None


@dataclass(frozen=True)
class TimeAuthority:
    """Where time stamps are asked for, and how."""

    url: str
    #: Some send certificates in an order that rfc3161-client refuses: they are asked for none.
    with_certificate: bool = True

    @classmethod
    def at(cls, url: str) -> TimeAuthority:
        """Return the authority at ``url``.

        Raises:
            UsageError: it is no address of a web server, or one with a password in it.
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
        """Return how this authority is to be asked, now that it has answered once.

        Raises:
            UnavailableError: it does not answer, or nothing that can be read.
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
        """Return the answer over ``message``, as it came.

        Raises:
            UnavailableError: there is none.
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
        except (OSError, ValueError) as error:  # also what http.client raises of a bad answer
            reason = getattr(error, "reason", None) or error
            raise UnavailableError(f"{self.url} does not answer: {reason}") from None
        return answer


@dataclass
class Asked:
    """A question that was sent, and its answer once it is there."""

    authority: TimeAuthority
    message: bytes
    #: The answer in DER and what it says, or why there is none.
    answer: bytes | None = None
    token: Token | None = None
    failure: str | None = None
    _thread: threading.Thread = field(init=False)

    def __post_init__(self) -> None:
        # A daemon: a run that has ended waits for no authority.
        self._thread = threading.Thread(target=self._ask, name="llmb-time-stamp", daemon=True)
        self._thread.start()

    @property
    def came(self) -> Token | None:
        """The token if it is there; this never waits."""
        return None if self._thread.is_alive() else self.token

    def wait(self) -> Token | None:
        """Return the token, waiting for the answer; None where there is none."""
        self._thread.join(PATIENCE_S + 1)
        return self.came

    def _ask(self) -> None:
        try:
            self.answer = self.authority.ask(self.message)
            self.token = time_stamp.read(self.answer, self.message)
        except LlmbError as error:
            self.failure = str(error)
