"""Makes bundles out of finished runs: what may be handed in, under a name that says what it is."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from llmb.errors import BundleRefusedError, UsageError
from llmb.records import member_names, members
from llmb.records.bundle import MANIFEST, RECORD, Bundle, from_files, parse_record, read_bundle
from llmb.records.finding import Status, Verdict
from llmb.records.run_directory import LOG
from llmb.records.run_record import RunRecord
from llmb.records.system_index import INDEX, Availability, reason_fault
from llmb.submission import layout, page, signatures, store, system_index
from llmb.submission.manifest import with_manifest, zip_bytes
from llmb.submission.verify import verify_bundle

#: What a bundle may take for each repeat: evidence is kept of every one.
MAX_BYTES_PER_REPEAT = 16 * 2**20


@dataclass(frozen=True)
class _Prepared:
    """A bundle that has passed every check, and where it goes below its system's folder."""

    path: str
    precision: str
    bundle: Bundle


def package(
    run_dirs: Sequence[Path],
    submitter: str,
    system: str,
    output: Path,
    zip: bool = False,
    missing: Mapping[str, str] | None = None,
    availability: Availability | None = None,
    key: Path | None = None,
) -> list[Path]:
    """Write a bundle for each run directory into ``output/<submitter>/<system>``.

    Nothing is written unless all of them can be. A bundle that is there already is left alone.

    Args:
        run_dirs: directories that ``llmb run`` has left.
        submitter: who hands in; a folder name on every system.
        system: what it was run on; likewise.
        output: the folder of all submissions.
        zip: write ``<bundle>.zip`` beside each bundle, too.
        missing: why a precision was not handed in, by its name.
        availability: whether the system is to be had; None leaves what was declared before.
        key: a file with an ssh key to sign each bundle with.

    Returns:
        The folders of the bundles, one for each run directory.

    Raises:
        UsageError: a name no folder can have, no such run, or another bundle in the way.
        BundleRefusedError: a run that cannot be handed in: unfinished, debug, INVALID, altered or
            too large.
        UnavailableError: a signature was asked for, and there is no ssh-keygen.
    """
    for flag, part in (("--submitter", submitter), ("--system", system)):
        _check_folder_name(flag, part)
    folder = output / submitter / system
    _check_reasons(missing or {})
    ready = [_prepare(run_dir) for run_dir in run_dirs]
    with _writable(output):
        for one in ready:
            _check_target(folder / one.path, one.bundle)
    bundles = system_index.existing_bundles(folder) | {one.path: one.precision for one in ready}
    index = system_index.make(folder, submitter, bundles, missing or {}, availability)
    if key is not None:
        ready = [replace(one, bundle=signatures.sign(one.bundle, key)) for one in ready]
    with _writable(output):
        for one in ready:
            store.put(folder / one.path, one.bundle, zip)
        store.write_file(folder / INDEX, system_index.index_bytes(index))
    return [folder / one.path for one in ready]


def sign(paths: Sequence[Path], key: Path) -> list[Path]:
    """Add a signature to each bundle at ``paths`` (folders or zips), and return them.

    Raises:
        UsageError: no such bundle, or a key that cannot be used.
        BundleRefusedError: a bundle that does not verify: nothing is signed then.
        UnavailableError: there is no ssh-keygen.
    """
    signed = []
    for path in paths:
        bundle = read_bundle(path)
        fault = _not_sound(bundle)
        if fault is not None:
            raise BundleRefusedError(f"{str(path)!r} is not worth a signature: {fault}")
        signed.append((path, signatures.sign(bundle, key)))
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
    """Say in one line that something could not be written at ``place``."""
    try:
        yield
    except OSError as error:
        raise UsageError(f"cannot write to {str(place)!r}: {error.strerror or error}") from None


def _check_folder_name(flag: str, part: str) -> None:
    fault = member_names.title_fault(part)
    if part and fault is not None:
        raise UsageError(f"{flag} {part!r} {fault}: choose a name that any file system takes")
    if not part:
        raise UsageError(f"{flag} is empty: it names a folder")


def _prepare(run_dir: Path) -> _Prepared:
    """Return the checked bundle of ``run_dir``, or say why it cannot be handed in."""
    if not os.path.isdir(run_dir):
        raise UsageError(f"{str(run_dir)!r} is not a run directory")
    files = members.read_folder(run_dir, layout.is_known)
    if RECORD not in files:
        log = members.read_folder(run_dir, LOG.__eq__)  # it stays there: no part of a bundle
        raise BundleRefusedError(f"{str(run_dir)!r} is not finished: {_last_words(log)}")
    record = parse_record(files[RECORD], str(run_dir / RECORD))
    files[layout.PAGE] = page.page_bytes(record)
    bundle = from_files(with_manifest(files))
    fault = _not_for_submission(record) or _not_sound(bundle) or _too_large(bundle, record)
    if fault is not None:
        raise BundleRefusedError(f"{str(run_dir)!r} cannot be submitted: {fault}")
    precision = record.precision.effective or record.precision.declared
    return _Prepared(path=layout.bundle_path(record), precision=precision, bundle=bundle)


def _last_words(files: Mapping[str, bytes]) -> str:
    lines = files.get(LOG, b"").decode(errors="replace").split("\n")
    words = [line.strip() for line in lines if line.strip()]
    return words[-1] if words else f"it has no {RECORD}, and its {LOG} says nothing"


def _not_for_submission(record: RunRecord) -> str | None:
    if record.class_ == "debug":
        return f"it is a debug run ({'; '.join(record.waivers)})"
    if record.audit.verdict is Verdict.INVALID:
        broken = [f"{f.id}: {f.message}" for f in record.audit.findings if f.status is Status.FAIL]
        return f"its audit is INVALID ({'; '.join(broken)})"
    return None


def _not_sound(bundle: Bundle) -> str | None:
    failed = [check for check in verify_bundle(bundle).checks if not check.ok]
    return "; ".join(f"{check.name}: {check.message}" for check in failed) or None


def _too_large(bundle: Bundle, record: RunRecord) -> str | None:
    repeats = len(record.timing.repeats)
    most, total = repeats * MAX_BYTES_PER_REPEAT, sum(map(len, bundle.files.values()))
    if total <= most:
        return None
    largest = sorted(bundle.files, key=lambda name: (-len(bundle.files[name]), name))[:3]
    shown = ", ".join(f"{name} {len(bundle.files[name]) / 2**20:.1f} MiB" for name in largest)
    allowed = f"{most / 2**20:.0f} MiB that {repeats} repeat{'s' if repeats > 1 else ''} may take"
    return f"it has {total / 2**20:.1f} MiB of the {allowed}; the largest: {shown}"


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
            there = read_bundle(path).bundle_id
        except BundleRefusedError as error:
            raise UsageError(f"{str(path)!r} is in the way and no sound bundle: {error}") from None
        if there != bundle.bundle_id:
            raise UsageError(
                f"{str(path)!r} holds another bundle ({there[:12]}, not {bundle.bundle_id[:12]}): "
                "remove it, or choose another --output"
            )
