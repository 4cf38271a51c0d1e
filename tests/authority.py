"""A real time-stamping authority on the loopback address: OpenSSL signs, with keys made here."""

from __future__ import annotations

import http.server
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from tests import needs

_CONFIG = """\
[tsa]
default_tsa = this
[this]
serial = {folder}/serial
crypto_device = builtin
signer_cert = {folder}/own.pem
signer_key = {folder}/own.key
signer_digest = sha256
default_policy = 1.2.3.4.1
other_policies = 1.2.3.4.2
digests = sha256
{more}
"""
Answer = Callable[[bytes], "tuple[int, bytes]"]


@dataclass
class Authority:
    """Keys, certificates and an address; ``answer`` may be replaced by a fault."""

    folder: Path
    url: str = ""
    #: Questions so far, in DER.
    asked: list[bytes] = field(default_factory=list)
    #: Seconds before each answer.
    delay_s: float = 0.0
    answer: Answer | None = None

    @property
    def root(self) -> Path:
        """The certificate of the root."""
        return self.folder / "root.pem"

    @property
    def own(self) -> Path:
        """The authority's own certificate."""
        return self.folder / "own.pem"

    def sign(self, question: bytes) -> bytes:
        """Return the answer to a question, both in DER."""
        with tempfile.NamedTemporaryFile(dir=self.folder) as file:
            file.write(question)
            file.flush()
            config = str(self.folder / "tsa.cnf")
            command = ["openssl", "ts", "-reply", "-config", config, "-queryfile", file.name]
            return subprocess.run(command, capture_output=True, check=True).stdout


def made(folder: Path, *more: str, name: str = "Test authority") -> Authority:
    """Return an authority whose keys lie in ``folder``; ``more`` are lines of its settings.

    Examples: "accuracy = secs:1", "clock_precision_digits = 3", f"certs = {folder}/root.pem".
    """
    needs.program("openssl")
    folder.mkdir(parents=True, exist_ok=True)

    def openssl(*arguments: str) -> None:
        command = ["openssl", *arguments]
        subprocess.run(command, cwd=folder, capture_output=True, check=True)

    key = ("-newkey", "rsa:2048", "-nodes")
    ten_years = ("-days", "3650")
    files = ("-keyout", "root.key", "-out", "root.pem")
    openssl("req", "-x509", *key, *files, "-subj", f"/CN=Root of {name}", *ten_years)
    openssl("req", *key, "-keyout", "own.key", "-out", "own.csr", "-subj", f"/CN={name}")
    (folder / "uses").write_text("extendedKeyUsage=critical,timeStamping\n")
    signed = ("-CA", "root.pem", "-CAkey", "root.key", "-CAcreateserial", "-extfile", "uses")
    openssl("x509", "-req", "-in", "own.csr", "-out", "own.pem", *signed, *ten_years)
    (folder / "serial").write_text("01\n")
    (folder / "tsa.cnf").write_text(_CONFIG.format(folder=folder, more="\n".join(more)))
    return Authority(folder)


@contextmanager
def serving(authority: Authority) -> Iterator[Authority]:
    """Have ``authority`` answer at its ``url`` for a while."""
    lock = threading.Lock()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            question = self.rfile.read(int(self.headers["Content-Length"]))
            with lock:
                authority.asked.append(question)
            time.sleep(authority.delay_s)
            with lock:  # OpenSSL counts serial numbers in a file
                status, body = (authority.answer or (lambda q: (200, authority.sign(q))))(question)
            with suppress(BrokenPipeError, ConnectionResetError):  # who asked may have gone
                self.send_response(status)
                self.send_header("Content-Type", "application/timestamp-reply")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        authority.url = f"http://127.0.0.1:{server.server_address[1]}/tsr"
        try:
            yield authority
        finally:
            server.shutdown()
            thread.join()
