"""Checks the folder of all submissions, and changes to the folder: owners and permitted paths.

The llmb, the rules and the owners of the changed commit (the *base*) judge a pull request: no part
of a pull request decides about itself. git is asked for names and digests alone.
"""

from __future__ import annotations

import hashlib
import os
import stat
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from llmb.errors import (
    BundleRefusedError,
    EvidenceNotHereError,
    LlmbError,
    UnavailableError,
    UsageError,
)
from llmb.records.bundle import BUNDLE_SCHEMA, MANIFEST, SIGNATURES, Take, read_bundle
from llmb.records.finding import RULES_VERSION
from llmb.records.recomputed_list import RECOMPUTED
from llmb.records.submission import slug_fault
from llmb.records.system_index import INDEX
from llmb.submission import layout, owners, system_index
from llmb.submission.owners import OWNERS, OwnerLine
from llmb.submission.time_stamps import AUTHORITIES
from llmb.submission.verify import Verification, verify_bundle

#: Files beside the submitters' folders; any change may include the files ``llmb report`` makes.
MADE = ("leaderboard.html", "leaderboard.md")
BESIDE = ("README.md", OWNERS, RECOMPUTED, AUTHORITIES, *MADE)
_GIT_S = 120
#: git's mode of a plain file, and the words for other modes.
_PLAIN = "100644"
_KINDS = {"100755": "executable", "120000": "a link", "160000": "a repository of its own"}


@dataclass(frozen=True)
class TreeFault:
    """A fault and its place: a path below the folder of submissions, or in one of its bundles."""

    path: str
    reason: str
    #: True if the bundle shows no fault, but its evidence is stored elsewhere and out of reach.
    is_unread: bool = False


@dataclass(frozen=True)
class TreeVerification:
    """The result for a folder of submissions."""

    faults: tuple[TreeFault, ...]
    #: Path of each readable bundle and the bundle's checks: only new bundles if the tree was
    #: compared with a base, else all bundles.
    bundles: Mapping[str, Verification] = field(default_factory=dict)
    #: Changed files outside of the folder; `--tree` judges none of these files.
    outside: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Files:
    """The files of a tree: path below the tree -> git's digest of the content; and the owners."""

    blobs: Mapping[str, str]
    #: Path -> kind of an entry that is no plain file.
    odd: Mapping[str, str]
    owners: tuple[OwnerLine, ...]
    #: Comments of the list of owners.
    remarks: frozenset[str] = frozenset()

    @property
    def bundles(self) -> frozenset[str]:
        """Paths of the bundles' folders."""
        parts = (path.split("/") for path in self.blobs)
        return frozenset("/".join(p[:4]) for p in parts if len(p) >= 5)

    @property
    def submitters(self) -> frozenset[str]:
        """Submitters with a folder, or listed as an owner."""
        folders = {path.partition("/")[0] for path in self.blobs if "/" in path}
        return frozenset(folders | {name for line in self.owners for name in line.owners})

    def accounts(self, submitter: str) -> frozenset[str]:
        """Return the accounts that may remove bundles of ``submitter``."""
        lines = [line for line in self.owners if submitter in line.owners]
        return frozenset(account for line in lines for account in line.accounts)


def verify_tree(
    tree: Path, base: str | None = None, author: str | None = None, take: Take | None = None
) -> TreeVerification:
    """Return the faults of the folder of submissions ``tree``, or of a change to the folder.

    Args:
        tree: the folder; files on disk count, committed or not.
        base: a commit of the repository with ``tree``. Only differences from the commit are
            judged, by the owners that the commit lists; None judges the full folder.
        author: the account that asks for the change; the account may remove bundles of an owner
            who lists the account.
        take: gives evidence that is stored elsewhere.

    Raises:
        UsageError: folder ``tree`` is missing or in no repository, or ``base`` does not exist.
        UnavailableError: ``base`` is given, and git is not installed.
    """
    if not tree.is_dir():
        raise UsageError(f"there is no folder {str(tree)!r}")
    commit = None if base is None else _commit(tree, base)
    faults = [*_links(tree)] if commit is not None else []
    if faults:
        return TreeVerification(tuple(faults))
    head = _head(tree, faults)
    before = None if commit is None else _base(tree, commit)
    faults += _places(head)
    faults += _indexes(tree, head)
    outside: tuple[str, ...] = ()
    if commit is not None and before is not None:
        faults += _kinds(tree, head)
        faults += _attributes(tree, commit)
        faults += _changes(before, head, author)
        faults += _returned(tree, commit, before, head)
        outside = _outside(tree, commit)
    known, changed = (head, head.bundles) if before is None else (before, _changed(before, head))
    checked: dict[str, Verification] = {}
    for path in sorted(changed & head.bundles):
        is_new = before is not None and path not in before.bundles
        faults += _bundle(tree, path, known, head, is_new, checked, take)
    return TreeVerification(tuple(dict.fromkeys(faults)), checked, outside)


# -- reading a tree --------------------------------------------------------------------------------


def _head(tree: Path, faults: list[TreeFault]) -> _Files:
    blobs: dict[str, str] = {}
    odd: dict[str, str] = {}
    for where, folders, names in os.walk(tree):
        folders.sort()
        for name in sorted((*names, *folders)):
            place = Path(where, name)
            path = place.relative_to(tree).as_posix()
            mode = place.lstat().st_mode
            if stat.S_ISREG(mode):
                blobs[path] = _blob(place)
            elif not stat.S_ISDIR(mode):
                odd[path] = "a link" if stat.S_ISLNK(mode) else "no file"
            elif name.startswith("."):
                odd[path] = "a hidden folder"
    known = _owners_of(tree, faults)
    said = owners.remarks((tree / OWNERS).read_bytes()) if known else frozenset[str]()
    return _Files(blobs, odd, known, said)


def _owners_of(tree: Path, faults: list[TreeFault]) -> tuple[OwnerLine, ...]:
    path = tree / OWNERS
    if not path.is_file() or path.is_symlink():
        return ()
    try:
        return owners.read(path.read_bytes())
    except BundleRefusedError as error:
        faults.append(TreeFault(OWNERS, str(error)))
        return ()


def _blob(path: Path) -> str:
    """Return git's digest of a file: sha1 over kind, size and content."""
    found = hashlib.sha1(b"blob %d\0" % path.stat().st_size, usedforsecurity=False)
    with path.open("rb") as file:
        while chunk := file.read(2**20):
            found.update(chunk)
    return found.hexdigest()


def _commit(tree: Path, base: str) -> str:
    """Return the commit ``base`` in hex."""
    if base.startswith("-") or not base:
        raise UsageError(f"--base {base!r} is no commit")
    commit = _git(tree, "rev-parse", "--verify", "--quiet", f"{base}^{{commit}}")
    if commit is None:
        raise UsageError(f"--base {base!r} is no commit of the repository of {str(tree)!r}")
    return commit.decode().strip()


def _base(tree: Path, commit: str) -> _Files:
    # The tree of the folder that git runs in, in full: --full-tree keeps git from a sub-path.
    listed = _git(tree, "ls-tree", "-r", "-z", "--full-tree", f"{commit}:./")
    blobs: dict[str, str] = {}
    for line in (listed or b"").split(b"\0")[:-1]:
        head, _, name = line.partition(b"\t")
        blobs[os.fsdecode(name)] = head.split()[2].decode()
    if OWNERS not in blobs:
        return _Files(blobs, {}, ())
    content = _git(tree, "cat-file", "blob", blobs[OWNERS]) or b""
    return _Files(blobs, {}, owners.read(content), owners.remarks(content))


def _git(folder: Path, *words: str) -> bytes | None:
    """Run git in ``folder`` without repository settings that could start a program."""
    safe = ("-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null", "--no-pager")
    try:
        done = subprocess.run(
            ["git", *safe, *words], cwd=folder, capture_output=True, check=False, timeout=_GIT_S
        )
    except FileNotFoundError:
        raise UnavailableError("--base needs git: install it") from None
    except subprocess.TimeoutExpired:
        raise UnavailableError(f"git gave no answer within {_GIT_S} s") from None
    return None if done.returncode else done.stdout


# -- what git knows beyond the files on disk -------------------------------------------------------


def _links(tree: Path) -> Iterator[TreeFault]:
    """Yield a fault if a link leads to the folder: the base would then have another folder."""
    top = _top(tree)
    for place in (tree.absolute(), *tree.absolute().parents):
        if top == os.path.realpath(place):
            return
        if place.is_symlink():
            yield TreeFault(place.name, "is a link: the folder of submissions is no link")
            return


def _top(tree: Path) -> str:
    """Return the top folder of the repository of ``tree``."""
    return os.fsdecode(_git(tree, "rev-parse", "--show-toplevel") or b"").rstrip("\n")


def _kinds(tree: Path, head: _Files) -> Iterator[TreeFault]:
    """Yield entries that git would not write as plain files, whatever this disk shows.

    An empty folder on disk may be a repository of its own, and a disk may know neither links nor
    executable files.
    """
    for line in (_git(tree, "ls-files", "--stage", "-z", "--", ".") or b"").split(b"\0")[:-1]:
        mode, path = line[:6].decode(), os.fsdecode(line.partition(b"\t")[2])
        if mode != _PLAIN and path not in head.odd:
            what = _KINDS.get(mode, "no plain file")
            yield TreeFault(path, f"is {what}: submissions are plain files in folders")


def _attributes(tree: Path, commit: str) -> Iterator[TreeFault]:
    """Yield changed git attributes above the folder: they decide what a checkout writes."""
    top = Path(_top(tree))
    for folder in Path(os.path.realpath(tree)).relative_to(top).parents:
        name = (folder / ".gitattributes").as_posix()
        path = top / name
        before = _git(tree, "rev-parse", "--verify", "--quiet", f"{commit}:{name}")
        now = _blob(path) if path.is_file() and not path.is_symlink() else None
        if os.path.lexists(path) != (before is not None) or (
            before is not None and before.decode().strip() != now
        ):
            yield TreeFault(name, "decides what is checked out: a maintainer changes it")


def _outside(tree: Path, commit: str) -> tuple[str, ...]:
    """Return changed files of the repository outside of the folder, by git's index."""
    listed = _git(tree, "diff-index", "--cached", "--name-only", "--no-renames", "-z", commit)
    prefix = os.fsdecode(_git(tree, "rev-parse", "--show-prefix") or b"").rstrip("\n")
    names = map(os.fsdecode, (listed or b"").split(b"\0")[:-1])
    return tuple(name for name in names if prefix and not name.startswith(prefix))


# -- permitted paths -------------------------------------------------------------------------------


def _places(head: _Files) -> Iterator[TreeFault]:
    """Yield entries at paths where no submission has a file."""
    for path, what in sorted(head.odd.items()):
        yield TreeFault(path, f"is {what}: submissions are plain files in folders")
    strangers: set[str] = set()
    for path in sorted(head.blobs):
        parts = path.split("/")
        reason = _misplaced(parts)
        if reason is not None and "/".join(parts[:4]) not in strangers:
            strangers.add("/".join(parts[:4]))
            yield TreeFault(path, reason)
    for bundle in sorted(head.bundles):
        system = "/".join(bundle.split("/")[:2])
        if f"{bundle}/{MANIFEST}" not in head.blobs:
            yield TreeFault(bundle, f"has no {MANIFEST}: only bundles lie here")
        if f"{system}/{INDEX}" not in head.blobs:
            yield TreeFault(system, f"has no {INDEX}: llmb package-submission writes it")


def _indexes(tree: Path, head: _Files) -> Iterator[TreeFault]:
    """Yield indexes of systems that do not list exactly the bundles in the same folder."""
    for path in sorted(p for p in head.blobs if p.count("/") == 2 and p.endswith(f"/{INDEX}")):
        try:
            reason = system_index.fault(tree / path)
        except BundleRefusedError as error:
            reason = str(error).replace(str(tree / path), path)
        if reason is not None:
            yield TreeFault(path, reason)


#: All files of a folder ask again: a change may add 100,000 files.
_slug_fault = lru_cache(maxsize=1024)(slug_fault)


def _misplaced(parts: list[str]) -> str | None:
    if len(parts) == 1:
        return None if parts[0] in BESIDE else f"is none of {', '.join(BESIDE)}"
    for part, what in zip(parts, ("submitter", "system"), strict=False):
        fault = _slug_fault(part)
        if fault is not None:
            return f"the name of the {what}, {part!r}, {fault}"
    if len(parts) == 3 and parts[2] == INDEX:
        return None
    return None if len(parts) >= 5 else "lies outside of every bundle"


# -- permitted changes -----------------------------------------------------------------------------


def _changed_files(before: _Files, head: _Files) -> list[str]:
    every = before.blobs.keys() | head.blobs.keys()
    return sorted(path for path in every if before.blobs.get(path) != head.blobs.get(path))


def _changed(before: _Files, head: _Files) -> frozenset[str]:
    """Return the paths of bundles with a changed file."""
    parts = (path.split("/") for path in _changed_files(before, head))
    return frozenset("/".join(p[:4]) for p in parts if len(p) >= 5)


def _changes(before: _Files, head: _Files, author: str | None) -> Iterator[TreeFault]:
    """Yield forbidden parts of a change from ``before`` to ``head``.

    Anybody may add bundles that the owner has signed, with the index of the bundles' system. Only
    the owner's accounts may change the rest of an owner's folder: a junk signature would get a
    bundle refused.
    """
    changed = _changed_files(before, head)
    touched = sorted({path.partition("/")[0] for path in changed if "/" in path})
    if len(touched) > 1:
        yield TreeFault(touched[1], f"changes folders of {' and '.join(touched)}: one owner a time")
    if OWNERS in changed:
        yield from _other_owners(before, head)
    for path in ("README.md", RECOMPUTED, AUTHORITIES):
        if path in changed:
            yield TreeFault(path, "is no part of a submission: a maintainer changes it")
    for path in MADE:
        if path in before.blobs.keys() - head.blobs.keys():
            yield TreeFault(path, "is taken away: llmb report makes it again")
    gone, new = before.bundles - head.bundles, head.bundles - before.bundles
    systems = {"/".join(bundle.split("/")[:2]) for bundle in new}
    told: set[str] = set()
    for path in changed:
        bundle, owner = "/".join(path.split("/")[:4]), path.partition("/")[0]
        is_owner = (author or "").lower() in before.accounts(owner)
        if bundle in told:
            continue
        if path.endswith(f"/{INDEX}") and path.count("/") == 2:
            ours = owner not in before.submitters or path.removesuffix(f"/{INDEX}") in systems
            if not ours and not is_owner:
                yield TreeFault(path, _not_the_owner("changes an index", owner, author))
        elif bundle in gone:
            told.add(bundle)
            if not is_owner:
                yield TreeFault(bundle, _not_the_owner("takes a bundle away", owner, author))
        elif bundle in before.bundles:
            told.add(bundle)
            if path in before.blobs or not path.startswith(f"{bundle}/{SIGNATURES}"):
                yield TreeFault(path, "a bundle is never edited: take it away and hand in another")
            elif not is_owner:
                yield TreeFault(path, _not_the_owner("adds a signature to a bundle", owner, author))
    for owner in touched:
        if owner in before.submitters and not any(owner in o.owners for o in before.owners):
            why = f"nobody is listed in {OWNERS} for {owner!r}: a maintainer lists the owner first"
            yield TreeFault(owner, why)
        elif not any(owner in line.owners for line in head.owners):
            yield TreeFault(owner, f"list a key of {owner!r} in {OWNERS} with this change")


def _returned(tree: Path, commit: str, before: _Files, head: _Files) -> Iterator[TreeFault]:
    """Yield new bundles that the main line once had, and that a maintainer or the owner removed."""
    for bundle in sorted(head.bundles - before.bundles):
        manifest = f"{bundle}/{MANIFEST}"
        told = _git(tree, "rev-list", "--first-parent", commit, "--", f":(literal){manifest}")
        for past in (told or b"").decode().split():
            blob = _git(tree, "rev-parse", "--verify", "--quiet", f"{past}:./{manifest}")
            if blob is not None and blob.decode().strip() == head.blobs.get(manifest):
                yield TreeFault(bundle, "was here, and was taken away: ask a maintainer")
                break


def _not_the_owner(act: str, owner: str, author: str | None) -> str:
    who = f"{author!r} is not" if author else "nobody is said to be"
    return f"{act} of {owner!r}: {who} an account that {OWNERS} of the base lists for that owner"


def _other_owners(before: _Files, head: _Files) -> Iterator[TreeFault]:
    kept = {line.text for line in head.owners}
    for line in before.owners:
        if line.text not in kept:
            said = f"changes a line of {', '.join(sorted(line.owners))}: ask a maintainer"
            yield TreeFault(OWNERS, said)
    if OWNERS in before.blobs and before.remarks != head.remarks:
        yield TreeFault(OWNERS, "changes a comment: ask a maintainer")
    known = {line.text for line in before.owners}
    for line in head.owners:
        for owner in sorted(line.owners & before.submitters if line.text not in known else ()):
            yield TreeFault(OWNERS, f"adds a key of {owner!r}, who is listed: ask a maintainer")


# -- one bundle ------------------------------------------------------------------------------------


def _bundle(
    tree: Path,
    path: str,
    known: _Files,
    head: _Files,
    is_new: bool,
    checked: dict[str, Verification],
    take: Take | None,
) -> Iterator[TreeFault]:
    """Yield the faults of the bundle at ``path``; store the checks in ``checked``."""
    if f"{path}/{MANIFEST}" not in head.blobs:
        return
    submitter, system = path.split("/")[:2]
    # A new owner's key comes with the change; for a known owner the base's keys count.
    lines = known.owners if submitter in known.submitters else head.owners
    keys = [line.text for line in lines if submitter in line.owners]
    try:
        bundle = read_bundle(tree / path, take)
        found = verify_bundle(bundle, "\n".join(keys).encode() if keys else None)
    except LlmbError as error:
        unread = isinstance(error, EvidenceNotHereError)
        yield TreeFault(path, str(error).replace(str(tree / path), path), unread)
        return
    checked[path] = found
    for check in found.checks:
        if not check.ok:
            yield TreeFault(path, f"{check.name}: {check.message}")
    if path != f"{submitter}/{system}/{layout.bundle_path(found.record)}":
        yield TreeFault(path, f"its place is {layout.bundle_path(found.record)!r} of its system")
    whose = bundle.submission
    if whose is not None and (whose.submitter, whose.system) != (submitter, system):
        yield TreeFault(path, f"says it is of {whose.submitter}/{whose.system}")
    if not is_new:
        return
    if whose is None:
        yield TreeFault(path, f"is not of schema {BUNDLE_SCHEMA}: package the run again")
    if found.record.rules_version != RULES_VERSION:
        older = found.record.rules_version
        yield TreeFault(path, f"was judged by rules {older}: run it with rules {RULES_VERSION}")
    listed = owners.party(lines, submitter).organisation
    said = whose.organisation if whose is not None else None
    if said not in (None, listed):
        theirs = f"lists {listed!r}" if listed else "lists none"
        yield TreeFault(path, f"says it is of organisation {said!r}, and {OWNERS} {theirs}")
    if not keys:
        yield TreeFault(path, f"no key of {submitter!r} is listed: nobody can have signed it")
