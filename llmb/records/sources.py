"""A comparison of llmb's own sources with the release, to find changed files of the harness."""

from __future__ import annotations

import base64
import hashlib
import subprocess
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path

import llmb

_PACKAGE = Path(llmb.__file__).resolve().parent


@dataclass(frozen=True)
class SourcesDiff:
    """Files of llmb that differ from ``base``; None without a release to compare with."""

    base: str
    changed: tuple[str, ...] | None
    text: str


def compare() -> SourcesDiff:
    """Compare with the release's tag, else with HEAD, else with the installed wheel's digests."""
    in_git = _git("ls-files", "--error-unmatch", "__init__.py") is not None
    return _against_git() if in_git else _against_wheel()


def _against_git() -> SourcesDiff:
    tag = f"v{llmb.__version__}"
    base = tag if _git("rev-parse", "--verify", "--quiet", f"{tag}^{{commit}}") else "HEAD"
    commit = (_git("rev-parse", f"{base}^{{commit}}") or "").strip()
    plain = ("diff", "--relative", "--no-ext-diff", "--no-color", "--no-textconv")
    text = _git(*plain, commit, "--", ".") or ""
    changed = _lines(_git(*plain, "--name-only", commit, "--", "."))
    new = _lines(_git("ls-files", "--others", "--exclude-standard", "--", "."))
    changed = sorted(f"llmb/{name}" for name in {*changed, *new})
    added = "".join(f"new file: llmb/{name}\n" for name in new)
    return SourcesDiff(f"git {base} {commit}", tuple(changed), text + added)


def _lines(text: str | None) -> list[str]:
    return [line for line in (text or "").split("\n") if line]


def _against_wheel() -> SourcesDiff:
    try:
        listed = {Path(str(f)): f for f in files("llmb") or () if f.parts[0] == "llmb" and f.hash}
    except PackageNotFoundError:
        listed = {}
    if not listed:
        return SourcesDiff("no git work tree and no installed wheel", None, "")
    changed = []
    for path, entry in listed.items():
        on_disk = _PACKAGE.parent / path
        digest = hashlib.sha256(on_disk.read_bytes()).digest() if on_disk.is_file() else b""
        actual = base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
        if entry.hash is not None and actual != entry.hash.value:
            changed.append(path.as_posix())
    known = {_PACKAGE.parent / path for path in listed}
    changed += [
        file.relative_to(_PACKAGE.parent).as_posix()
        for file in _PACKAGE.rglob("*")
        if file.is_file() and file not in known and "__pycache__" not in file.parts
    ]
    text = "".join(f"differs from the wheel: {name}\n" for name in sorted(changed))
    return SourcesDiff(f"installed wheel llmb {llmb.__version__}", tuple(sorted(changed)), text)


def _git(*arguments: str) -> str | None:
    command = ["git", "-C", str(_PACKAGE), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)
    except (OSError, subprocess.TimeoutExpired):  # git is not installed
        return None
    return done.stdout if done.returncode == 0 else None
