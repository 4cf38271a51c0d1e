"""Signers of a bundle: ssh signatures over the manifest, made and checked by ``ssh-keygen``.

A signature proves who vouches for the bundle id, never that the run was honest. Keys, agents and
files of allowed signers are OpenSSH's own (ssh-keygen(1), "ALLOWED SIGNERS").
"""

from __future__ import annotations

import base64
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from llmb.errors import BundleRefusedError, UnavailableError, UsageError
from llmb.records import members
from llmb.records.bundle import SIGNATURES, Bundle, from_files
from llmb.records.printable import printable

#: Namespace of bundle signatures: ssh-keygen rejects a signature made for another purpose.
NAMESPACE = "llmb-bundle"
_MAX_SIGNERS_BYTES = 2**20
_MAX_PRINCIPALS = 16
_TIMEOUT_S = 60
#: Source: NIST SP 800-57 part 1, table 2: 128 bits of security need RSA of 3,072 bits.
_LEAST_RSA_BITS = 3072
#: The form that ssh-keygen writes; ssh-keygen would also read unsigned text around the form.
_ARMOUR = re.compile(
    rb"-----BEGIN SSH SIGNATURE-----\n(?:[A-Za-z0-9+/=]{1,76}\n)+-----END SSH SIGNATURE-----\n"
)
_GOOD = re.compile(r'Good "llmb-bundle" signature (?:for .+ )?with (\S+) key (SHA256:\S+)')
_PUBLIC = re.compile(rb"(ssh|ecdsa|sk)-\S+ [A-Za-z0-9+/=]+")
_TOO_OLD = re.compile(r"(unknown|illegal) option")
#: Special characters in ssh's patterns of principals: any text, any character, not.
_PATTERN = re.compile(rb"[*?!]")
_BAD_LINE = re.compile(r":(\d+): (missing key|invalid key|bad .*|unable to parse .*)")


@dataclass(frozen=True)
class Signature:
    """A signature that fits the manifest, and the key of the signature."""

    #: The file in the bundle; the file name proves nothing.
    name: str
    key_type: str
    #: "SHA256:" and the digest of the public key, as every ssh tool prints it.
    fingerprint: str
    #: The key's owner by the file of allowed signers; None without a file, or if no line fits.
    principal: str | None = None
    #: Why the principal is unknown; None with a principal, or without a file.
    doubt: str | None = None


def signers(bundle: Bundle, allowed: Path | bytes | None = None) -> tuple[Signature, ...]:
    """Return every signature of ``bundle``, each over the manifest, intact, and by a strong key.

    Args:
        bundle: the bundle as read.
        allowed: a file of allowed signers, or the file's content: the owners of keys.

    Raises:
        BundleRefusedError: a signature does not fit the manifest, is not for bundles, or is by a
            weak key: DSA, or RSA of fewer than 3,072 bits.
        UsageError: ``allowed`` cannot be read, has another form, or lets anybody sign (``*``).
        UnavailableError: signatures need a check, and ssh-keygen is not installed.
    """
    listed = None if allowed is None else _read_allowed(allowed)
    return tuple(
        _checked(name, armour, bundle, listed) for name, armour in bundle.signatures.items()
    )


def sign(bundle: Bundle, key: Path) -> Bundle:
    """Return ``bundle`` with one more signature, made with the ssh key in file ``key``.

    A public key stands for the private key in an ssh agent.

    Raises:
        UsageError: the key cannot be used; the message gives the reason.
        UnavailableError: ssh-keygen is not installed.
    """
    is_public = _is_public(key)
    done = _ssh_keygen(["sign", "-n", NAMESPACE, "-f", str(key)], bundle.manifest, wait=None)
    if done.returncode or _ARMOUR.fullmatch(done.stdout) is None:
        raise UsageError(f"--sign {str(key)!r}: {_why_not_signed(done, is_public)}")
    made = _checked(f"{SIGNATURES}new.sig", done.stdout, bundle, None)
    digest = made.fingerprint.removeprefix("SHA256:").replace("/", "_")
    name = f"{SIGNATURES}SHA256-{digest}.sig"
    return from_files({**bundle.files, name: done.stdout})


def _checked(name: str, armour: bytes, bundle: Bundle, allowed: bytes | None) -> Signature:
    if _ARMOUR.fullmatch(armour) is None:
        raise BundleRefusedError(f"{name!r} is not in the form ssh-keygen writes")
    with tempfile.TemporaryDirectory(prefix="llmb-") as folder:
        # Fixed names: no text of an untrusted bundle becomes a path or an argument.
        signature = Path(folder, "signature")
        signature.write_bytes(armour)
        done = _ssh_keygen(
            ["check-novalidate", "-n", NAMESPACE, "-s", str(signature)], bundle.manifest
        )
        good = _GOOD.match(done.stdout.decode(errors="replace"))
        if done.returncode or good is None:
            raise BundleRefusedError(f"{name!r} does not sign this manifest: {_last_line(done)}")
        weakness = _weakness(armour)
        if weakness is not None:
            raise BundleRefusedError(f"{name!r} is by {weakness}: sign with another key")
        found = Signature(name=name, key_type=good.group(1), fingerprint=good.group(2))
        if allowed is None:
            return found
        listed = Path(folder, "signers")
        listed.write_bytes(allowed)
        return _with_principal(found, signature, listed, bundle)


def _weakness(armour: bytes) -> str | None:
    """Return the weakness of the key of an intact signature, or None.

    Source: OpenSSH, PROTOCOL.sshsig (six bytes ``SSHSIG``, a version, the public key, ...) and
    RFC 4253, section 6.6 (``ssh-rsa``: exponent, modulus), each part after its length in 4 bytes.
    """
    whole = base64.b64decode(b"".join(armour.split(b"\n")[1:-2]))
    key, _ = _part(whole[10:])
    kind, rest = _part(key)
    if kind == b"ssh-rsa":
        _, rest = _part(rest)
        bits = int.from_bytes(_part(rest)[0], "big").bit_length()
        return None if bits >= _LEAST_RSA_BITS else f"an RSA key of {bits} bits"
    if b"-cert-" in kind:
        return "a certificate, whose authority nobody here knows"
    return "a DSA key" if kind == b"ssh-dss" else None


def _part(data: bytes) -> tuple[bytes, bytes]:
    end = 4 + int.from_bytes(data[:4], "big")
    return data[4:end], data[end:]


def _with_principal(found: Signature, signature: Path, listed: Path, bundle: Bundle) -> Signature:
    """Return ``found`` with the key's owner: the bundle's own submitter if several match."""
    files = ["-f", str(listed), "-s", str(signature)]
    done = _ssh_keygen(["find-principals", *files], b"")
    bad = _BAD_LINE.search(done.stderr.decode(errors="replace"))
    if bad is not None:
        raise UsageError(f"--signers: line {bad.group(1)} is not of an allowed signer: {bad[2]}")
    principals = done.stdout.decode(errors="replace").split("\n")
    doubt = "the file of signers does not list this key"
    owner = bundle.submission.submitter if bundle.submission else None
    principals.sort(key=lambda principal: principal != owner)
    for principal in [line for line in principals if line][:_MAX_PRINCIPALS]:
        asked = ["verify", *files, "-n", NAMESPACE, "-I", principal]
        verified = _ssh_keygen(asked, bundle.manifest)
        if verified.returncode == 0:
            return Signature(found.name, found.key_type, found.fingerprint, principal)
        first = verified.stderr.decode(errors="replace").split("\n")[0]
        doubt = printable(first.removeprefix(f"{listed}:"))[:200]
    return Signature(found.name, found.key_type, found.fingerprint, doubt=doubt)


def _read_allowed(allowed: Path | bytes) -> bytes:
    try:
        if isinstance(allowed, Path):
            name, allowed = repr(str(allowed)), members.read_file(allowed, _MAX_SIGNERS_BYTES)
        else:
            name = "the list"
    except (UsageError, BundleRefusedError) as error:
        raise UsageError(f"--signers: {error}") from None
    # OpenSSH 9.2 takes an empty line for a signer without a key; "#" keeps the line numbers.
    lines = [line.strip() or b"#" for line in allowed.split(b"\n")]
    if all(line.startswith(b"#") for line in lines):
        raise UsageError(f"--signers: {name} lists nobody")
    for number, line in enumerate(lines, start=1):
        if not line.startswith(b"#") and _PATTERN.search(line.split(None, 1)[0]):
            raise UsageError(f"--signers: line {number} is for whoever fits: name one submitter")
    return b"\n".join(lines) + b"\n"


def _is_public(key: Path) -> bool:
    """Tell whether a file holds a public key; a file without any key is refused here."""
    try:
        content = members.read_file(key, _MAX_SIGNERS_BYTES)
    except (UsageError, BundleRefusedError) as error:
        raise UsageError(f"--sign: {error}") from None
    public = _PUBLIC.match(content) is not None
    if b"PRIVATE KEY" not in content and not public:
        raise UsageError(f"--sign {str(key)!r}: this is no ssh key")
    return public


def _why_not_signed(done: subprocess.CompletedProcess[bytes], is_public: bool) -> str:
    said = done.stderr.decode(errors="replace")
    if "passphrase" in said:
        return (
            "the key asks for its passphrase, and it was not given: run this in a terminal, or "
            "give the key to an ssh-agent (ssh-add) first"
        )
    if is_public:
        return f"no ssh-agent holds its private key, and it lies not beside ({_last_line(done)})"
    if "Permissions" in said:
        return "others may read the key, so ssh-keygen does not use it: chmod 600 it"
    return f"ssh-keygen cannot sign with it ({_last_line(done)})"


def _last_line(done: subprocess.CompletedProcess[bytes]) -> str:
    lines = [line.strip() for line in done.stderr.decode(errors="replace").split("\n")]
    return printable(next((line for line in reversed(lines) if line), "no reason given"))[:200]


def _ssh_keygen(
    arguments: list[str], message: bytes, wait: float | None = _TIMEOUT_S
) -> subprocess.CompletedProcess[bytes]:
    """Run ``ssh-keygen -Y`` on ``message``; without a time limit, a passphrase may be asked."""
    program = shutil.which("ssh-keygen")
    if program is None:
        raise UnavailableError("signatures need ssh-keygen (OpenSSH 8.2 or newer): install it")
    try:
        done = subprocess.run(
            [program, "-Y", *arguments],
            input=message,
            capture_output=True,
            check=False,
            timeout=wait,
            start_new_session=wait is not None,
        )
    except subprocess.TimeoutExpired:
        raise UnavailableError(f"ssh-keygen gave no answer within {wait:g} s") from None
    except OSError as error:
        raise UnavailableError(f"ssh-keygen cannot be run: {error.strerror}") from None
    if _TOO_OLD.search(done.stderr.decode(errors="replace")):
        raise UnavailableError("signatures need OpenSSH 8.2 or newer: update ssh-keygen")
    return done
