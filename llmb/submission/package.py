"""Makes bundles from finished runs that may be submitted, with descriptive paths."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from llmb.errors import BundleRefusedError, UsageError
from llmb.records import member_names, members, submission
from llmb.records.bundle import (
    MANIFEST,
    RECORD,
    Bundle,
    Take,
    completed,
    from_files,
    may_lie_elsewhere,
    parse_record,
    read_partly,
)
from llmb.records.finding import Status, Verdict
from llmb.records.run_directory import LOG
from llmb.records.run_record import RunRecord
from llmb.records.submission import Submission
from llmb.records.system_index import INDEX, reason_fault
from llmb.submission import elsewhere, layout, page, signatures, store, system_index
from llmb.submission.manifest import with_manifest, zip_bytes
from llmb.submission.verify import verify_bundle

#: Largest size of a bundle per repeat, in bytes; evidence of every repeat is kept.
MAX_BYTES_PER_REPEAT = 16 * 2**20


@dataclass(frozen=True)
class _Prepared:
    """A bundle that has passed every check, and its path below the system's folder."""

    path: str
    precision: str
    bundle: Bundle


def package(
    run_dirs: Sequence[Path],
    whose: Submission,
    output: Path,
    zip: bool = False,
    missing: Mapping[str, str] | None = None,
    key: Path | None = None,
    evidence: Path | None = None,
    debug: bool = False,
) -> list[Path]:
    """Write a bundle for each run directory into ``output/<submitter>/<system>``.

    Either all bundles are written, or none. An existing bundle is left alone.

    Args:
        run_dirs: directories of ``llmb run``.
        whose: submitter and system; an availability of None means the availability declared
            before.
        output: the folder of all submissions.
        zip: also write ``<bundle>.zip`` beside each bundle.
        missing: why a precision was not submitted, by the precision's name.
        key: a file with an ssh key to sign each bundle with.
        evidence: a folder for large evidence, one file per digest, left out of the bundles.
        debug: bundle debug runs, too. Such a bundle can be verified, and is never ranked.

    Returns:
        The folders of the bundles, one for each run directory.

    Raises:
        UsageError: a run is missing, or another bundle is in the way.
        BundleRefusedError: a run cannot be submitted: unfinished, debug (without ``debug``),
            INVALID, altered or too large.
        UnavailableError: ``key`` is given, and ssh-keygen is not installed.
    """
    folder = output / whose.submitter / whose.system
    _check_reasons(missing or {})
    whose = system_index.with_availability(folder, whose)
    ready = [_prepare(run_dir, whose, evidence is not None, debug) for run_dir in run_dirs]
    with _writable(output):
        for one in ready:
            _check_target(folder / one.path, one.bundle)
    bundles = system_index.existing_bundles(folder) | {one.path: one.precision for one in ready}
    index = system_index.make(folder, whose, bundles, missing or {})
    if key is not None:
        ready = [replace(one, bundle=signatures.sign(one.bundle, key)) for one in ready]
    if evidence is not None:
        with _writable(evidence):
            ready = [replace(one, bundle=_without(one.bundle, evidence)) for one in ready]
    with _writable(output):
        for one in ready:
            store.put(folder / one.path, one.bundle, zip)
        store.write_file(folder / INDEX, system_index.index_bytes(index))
    return [folder / one.path for one in ready]


def _without(bundle: Bundle, evidence: Path) -> Bundle:
    """Return ``bundle`` without the large evidence, and write the evidence to its folder."""
    kept = elsewhere.put(evidence, bundle.files)
    return replace(bundle, files=kept)


def sign(paths: Sequence[Path], key: Path, take: Take | None = None) -> list[Path]:
    """Add a signature to each bundle at ``paths`` (folders or zips), and return the paths.

    Args:
        paths: the bundles.
        key: a file with an ssh key.
        take: gives evidence that is stored elsewhere, and stays there.

    Raises:
        UsageError: a bundle is missing, or the key cannot be used.
        BundleRefusedError: a bundle does not verify; no bundle is signed then.
        EvidenceNotHereError: evidence is stored elsewhere and could not be read.
        UnavailableError: ssh-keygen is not installed.
    """
    signed = []
    for path in paths:
        there = read_partly(path)
        bundle = completed(there, take)
        fault = _not_sound(bundle)
        if fault is not None:
            raise BundleRefusedError(f"{str(path)!r} is not worth a signature: {fault}")
        made = signatures.sign(bundle, key)
        signed.append((path, replace(there, files={**there.files, **made.signatures})))
    for path, bundle in signed:
        with _writable(path):
            if path.is_dir():
                store.put(path, bundle, zip=False)
            else:
                store.write_file(path, zip_bytes(bundle.files))
    return list(paths)


def is_bundle(path: Path) -> bool:
    """Tell whether ``path`` can only be meant as a bundle, not as a run directory."""
    return os.path.isfile(path) or os.path.isfile(path / MANIFEST)


@contextmanager
def _writable(place: Path) -> Iterator[None]:
    """Turn a write error at ``place`` into a one-line UsageError."""
    try:
        yield
    except OSError as error:
        raise UsageError(f"cannot write to {str(place)!r}: {error.strerror or error}") from None


def submission_of(
    submitter: str,
    system: str,
    organisation: str | None = None,
    system_name: str | None = None,
    availability: submission.Availability | None = None,
    contact: str | None = None,
) -> Submission:
    """Return submitter and system, from the options of the command line.

    Raises:
        UsageError: an id that is no slug (``slug_fault``), or a name that is no line of text.
    """
    for flag, text, name in (
        ("--submitter", submitter, "--organisation"),
        ("--system", system, "--system-name"),
    ):
        fault = submission.slug_fault(text)
        if fault is not None:
            nearest = submission.slug_of(text)
            instead = f": use {nearest!r}, and {name} {text!r} for people" if nearest else ""
            raise UsageError(f"{flag} {text!r} {fault}{instead}")
    for flag, line in (
        ("--organisation", organisation),
        ("--system-name", system_name),
        ("--contact", contact),
    ):
        fault = None if line is None else submission.line_fault(line)
        if fault is not None:
            raise UsageError(f"{flag} {line!r} {fault}")
    return Submission(
        submitter=submitter,
        system=system,
        organisation=organisation,
        system_name=system_name,
        availability=availability,
        contact=contact,
    )


def _prepare(run_dir: Path, whose: Submission, elsewhere: bool, debug: bool) -> _Prepared:
    """Return the checked bundle of ``run_dir``, or raise an error with the obstacle.

    Args:
        run_dir: the run's directory.
        whose: submitter and system.
        elsewhere: large evidence is stored elsewhere and does not count.
        debug: a debug run is no obstacle.
    """
    if not os.path.isdir(run_dir):
        raise UsageError(f"{str(run_dir)!r} is not a run directory")
    files = members.read_folder(run_dir, layout.is_known)
    if RECORD not in files:
        log = members.read_folder(run_dir, LOG.__eq__)  # the log is no part of a bundle
        raise BundleRefusedError(f"{str(run_dir)!r} is not finished: {_last_words(log)}")
    record = parse_record(files[RECORD], str(run_dir / RECORD))
    files[layout.PAGE] = page.page_bytes(record)
    bundle = from_files(with_manifest(files, whose))
    counted = {
        name: len(content)
        for name, content in bundle.files.items()
        if not (elsewhere and may_lie_elsewhere(name, len(content)))
    }
    fault = _not_for_submission(record, debug) or _not_sound(bundle) or _too_large(counted, record)
    if fault is not None:
        raise BundleRefusedError(f"{str(run_dir)!r} cannot be submitted: {fault}")
    precision = record.precision.effective or record.precision.declared
    return _Prepared(path=layout.bundle_path(record), precision=precision, bundle=bundle)


def _last_words(files: Mapping[str, bytes]) -> str:
    lines = files.get(LOG, b"").decode(errors="replace").split("\n")
    words = [line.strip() for line in lines if line.strip()]
    return words[-1] if words else f"it has no {RECORD}, and its {LOG} says nothing"


def _not_for_submission(record: RunRecord, debug: bool) -> str | None:
    if record.class_ == "debug" and not debug:
        return f"it is a debug run ({'; '.join(record.waivers)}): --debug bundles it, unranked"
    if record.audit.verdict is Verdict.INVALID:
        broken = [f"{f.id}: {f.message}" for f in record.audit.findings if f.status is Status.FAIL]
        return f"its audit is INVALID ({'; '.join(broken)})"
    return None


def _not_sound(bundle: Bundle) -> str | None:
    failed = [check for check in verify_bundle(bundle).checks if not check.ok]
    return "; ".join(f"{check.name}: {check.message}" for check in failed) or None


def _too_large(sizes: Mapping[str, int], record: RunRecord) -> str | None:
    repeats = len(record.timing.repeats)
    most, total = repeats * MAX_BYTES_PER_REPEAT, sum(sizes.values())
    if total <= most:
        return None
    largest = sorted(sizes, key=lambda name: (-sizes[name], name))[:3]
    shown = ", ".join(f"{name} {sizes[name] / 2**20:.1f} MiB" for name in largest)
    allowed = f"{most / 2**20:.0f} MiB that {repeats} repeat{'s' if repeats > 1 else ''} may take"
    where = "--evidence FOLDER puts large evidence elsewhere"
    return f"it has {total / 2**20:.1f} MiB of the {allowed}; the largest: {shown}; {where}"


def _check_reasons(missing: Mapping[str, str]) -> None:
    for name, reason in missing.items():
        fault = member_names.title_fault(name) or reason_fault(reason)
        if fault is not None:
            raise UsageError(f"--missing {name}={reason!r}: {fault}")


def _check_target(target: Path, bundle: Bundle) -> None:
    for path in (target, store.zip_path(target)):
        if not path.exists():
            continue
        try:
            there = read_partly(path).bundle_id
        except BundleRefusedError as error:
            raise UsageError(f"{str(path)!r} is in the way and no sound bundle: {error}") from None
        if there != bundle.bundle_id:
            raise UsageError(
                f"{str(path)!r} holds another bundle ({there[:12]}, not {bundle.bundle_id[:12]}): "
                "remove it, or choose another --output"
            )
