"""Evidence stored outside the bundle, found by digest: in a folder, or at an http(s) address.

A bundle never gives the place: only the user does (``--evidence``). Received bytes are compared
with the manifest's size and digest before anything parses a byte.
"""

from __future__ import annotations

import hashlib
import http.client
import os
import stat
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread
from urllib.parse import SplitResult, urljoin, urlsplit

from llmb import __version__
from llmb.errors import EvidenceNotHereError, LlmbError, UsageError
from llmb.records.bundle import ManifestFile, may_lie_elsewhere
from llmb.records.members import read_file

#: After one of these endings an address continues with 64 digits, else with ``/sha256-<digits>``.
#: Example: ``https://host/evidence`` continues with ``/sha256-0123...``.
_UP_TO_DIGITS = ("sha256:", "sha256-", "sha256/")
#: For one file: seconds until the first byte, and the slowest connection in bytes per second.
WAIT_S, SLOWEST = 30.0, 250_000
_REDIRECTS = (301, 302, 303, 307, 308)
_MOST_REDIRECTS = 5


class _SilentError(OSError):
    """A place that gives no answer: a second request would take as long again."""


@dataclass
class EvidencePlaces:
    """The places to search for evidence, in order: the first place with the right bytes counts."""

    names: Sequence[str]
    wait_s: float = WAIT_S
    _silent: dict[str, str] = field(default_factory=dict)

    def take(self, wanted: ManifestFile) -> bytes:
        """Return the bytes of ``wanted``.

        Raises:
            EvidenceNotHereError: no place has the bytes; the message gives each place's answer.
        """
        reasons: list[str] = []
        for name in self.names:
            content = self._ask(name, wanted, "GET", reasons)
            if content is None:
                continue
            if hashlib.sha256(content).hexdigest() == wanted.sha256:
                return content
            reasons.append(f"{_at(name, wanted)!r} has other bytes than the manifest lists")
        raise EvidenceNotHereError(f"evidence not here: {'; '.join(reasons)}")

    def has(self, wanted: ManifestFile) -> bool:
        """Tell whether a place reports ``wanted``, by name and size, without reading the file."""
        return any(self._ask(name, wanted, "HEAD", []) is not None for name in self.names)

    def _ask(
        self, name: str, wanted: ManifestFile, method: str, reasons: list[str]
    ) -> bytes | None:
        """Return a place's bytes, of the wanted size; or None, and append one reason."""
        if name in self._silent:
            reasons.append(self._silent[name])
            return None
        at = _at(name, wanted)
        try:
            if not _is_address(name):
                return _file(Path(at), wanted.bytes, method)
            wait_s = self.wait_s + wanted.bytes / SLOWEST
            return _within(wait_s, lambda: _answer(at, wanted.bytes, method, self.wait_s))
        except _SilentError as error:
            self._silent[name] = f"{name!r}: {error}"
            reasons.append(self._silent[name])
        except LlmbError as error:  # an error of a file, with the file's name
            reasons.append(str(error))
        except (OSError, ValueError, http.client.HTTPException) as error:
            reasons.append(f"{at!r}: {_why(error)}")
        return None


def places(names: Sequence[str]) -> EvidencePlaces | None:
    """Return the places of evidence from the words of ``--evidence``; None for no words.

    Raises:
        UsageError: a word is neither a folder nor an http(s) address.
    """
    for name in names:
        fault = _fault(name)
        if fault is not None:
            raise UsageError(f"--evidence {name!r} {fault}")
    return EvidencePlaces(names) if names else None


def put(folder: Path, files: Mapping[str, bytes]) -> dict[str, bytes]:
    """Write the part of ``files`` that may be stored elsewhere to ``folder``; return the rest.

    Raises:
        OSError: a file cannot be written.
    """
    kept = dict(files)
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        if not may_lie_elsewhere(name, len(content)):
            continue
        del kept[name]
        digest = hashlib.sha256(content).hexdigest()
        target = Path(_at(str(folder), ManifestFile(sha256=digest, bytes=len(content))))
        draft = folder / f".{digest}.new"
        draft.write_bytes(content)
        os.replace(draft, target)  # replaces an existing link, and does not follow the link
    return kept


def _fault(name: str) -> str | None:
    if not name.isprintable() or not name:
        return "is no readable text"
    if not _is_address(name):
        folder = name if not name.endswith(_UP_TO_DIGITS) else os.path.dirname(name) or "."
        return None if os.path.isdir(folder) else "is no folder, and no address of http(s)"
    try:
        parts = urlsplit(name)
        host, _ = parts.hostname, parts.port
    except ValueError:
        return "is no address: write it as https://HOST/PATH"
    if parts.scheme not in ("http", "https") or not host:
        return "is no address of http or https"
    if parts.username is not None or parts.query or parts.fragment or "?" in name or "#" in name:
        return "has a user, ? or #: only https://HOST/PATH is read"
    return None


def _is_address(name: str) -> bool:
    return "://" in name


def _at(name: str, wanted: ManifestFile) -> str:
    if name.endswith(_UP_TO_DIGITS):
        return f"{name}{wanted.sha256}"
    return f"{name.rstrip('/') or '/'}/sha256-{wanted.sha256}"


def _file(path: Path, size: int, method: str) -> bytes:
    """Return a file of ``size`` bytes; b"" if only its existence is asked."""
    if method == "GET":
        content = read_file(path, size, follow=False)
        if len(content) != size:
            raise ValueError(f"it has {len(content)} bytes, the manifest lists {size}")
        return content
    found = os.lstat(path)
    if not stat.S_ISREG(found.st_mode) or found.st_size != size:
        raise ValueError("another file is there")
    return b""


def _answer(address: str, size: int, method: str, wait_s: float) -> bytes:
    """Return ``size`` bytes from ``address``; redirects may lead to http(s) addresses only."""
    for _ in range(1 + _MOST_REDIRECTS):
        try:
            return _one_answer(address, size, method, wait_s)
        except urllib.error.HTTPError as error:
            with error:  # the body may have no end, and is not read
                to = error.headers.get("Location")
            if error.code not in _REDIRECTS or to is None:
                raise ValueError(f"answers {error.code}") from None
            before, address = urlsplit(address), urljoin(address, to)
            _check_redirect(before, urlsplit(address))
    raise ValueError(f"redirects more than {_MOST_REDIRECTS} times")


def _check_redirect(before: SplitResult, after: SplitResult) -> None:
    if after.scheme not in ("http", "https") or not after.hostname:
        raise ValueError("redirects to what is no address of http or https")
    if (before.scheme, after.scheme) == ("https", "http"):
        raise ValueError("redirects from https to http")


def _one_answer(address: str, size: int, method: str, wait_s: float) -> bytes:
    request = urllib.request.Request(
        address, method=method, headers={"User-Agent": f"llmb/{__version__}"}
    )
    with _opener().open(request, timeout=wait_s) as answer:
        said = answer.headers.get("Content-Length")
        if said is not None and said != str(size):
            raise ValueError(f"it has {said[:20]!r} bytes, the manifest lists {size}")
        if method == "HEAD":
            if said is None:
                raise ValueError("it does not say how many bytes it has")
            return b""
        content: bytes = answer.read(size + 1)
    if len(content) != size:
        more = "more" if len(content) > size else f"{len(content)} bytes"
        raise ValueError(f"it gives {more}, the manifest lists {size}")
    return content


def _opener() -> urllib.request.OpenerDirector:
    """Return an opener for http(s) addresses alone, which follows no redirect by itself."""
    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler(),
        urllib.request.HTTPHandler(),
        urllib.request.HTTPSHandler(),
        urllib.request.HTTPDefaultErrorHandler(),
        urllib.request.HTTPErrorProcessor(),
    ):
        opener.add_handler(handler)
    return opener


def _within(wait_s: float, ask: Callable[[], bytes]) -> bytes:
    """Return the result of ``ask`` if finished within ``wait_s`` seconds.

    A server that sends one byte now and then never triggers a socket timeout; only a separate clock
    ends the wait. The thread is left behind, and ends with the server or with llmb.
    """
    box: SimpleQueue[bytes | Exception] = SimpleQueue()

    def run() -> None:
        try:
            box.put(ask())
        except Exception as error:  # raised again in the waiting thread
            box.put(error)

    Thread(target=run, daemon=True).start()
    try:
        found = box.get(timeout=wait_s)
    except Empty:
        raise _SilentError(f"no whole answer within {wait_s:.0f} s") from None
    if isinstance(found, (urllib.error.URLError, TimeoutError)):
        raise _SilentError(_why(found))
    if isinstance(found, Exception):
        raise found
    return found


def _why(error: Exception) -> str:
    reason = getattr(error, "reason", None) if isinstance(error, urllib.error.URLError) else error
    if isinstance(reason, TimeoutError):
        return "no answer in time"
    if isinstance(reason, ValueError):
        return str(reason)
    if isinstance(reason, OSError) and reason.strerror:
        return str(reason.strerror)
    return f"no answer of HTTP ({type(reason).__name__})"
