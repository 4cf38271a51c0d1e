"""Makes bundles out of finished runs: what may be handed in, under a name that says what it is."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from llmb.errors import BundleRefusedError, UsageError
from llmb.records import member_names, members
from llmb.records.bundle import RECORD, Bundle, from_files, parse_record, read_bundle
from llmb.records.finding import Status, Verdict
from llmb.records.run_directory import LOG
from llmb.records.run_record import RunRecord
from llmb.submission import layout, system_index
from llmb.submission.manifest import with_manifest, zip_bytes
from llmb.submission.verify import verify_bundle


@dataclass(frozen=True)
class _Ready:
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

    Returns:
        The folders of the bundles, one for each run directory.

    Raises:
        UsageError: a name no folder can have, no such run, or another bundle in the way.
        BundleRefusedError: a run that cannot be handed in: unfinished, debug, INVALID or altered.
    """
    for flag, part in (("--submitter", submitter), ("--system", system)):
        _check_folder_name(flag, part)
    folder = output / submitter / system
    ready = [_prepare(run_dir) for run_dir in run_dirs]
    for one in ready:
        _check_target(folder / one.path, one.bundle)
    bundles = system_index.existing_bundles(folder) | {one.path: one.precision for one in ready}
    index = system_index.make(folder, submitter, bundles, missing or {})
    for one in ready:
        _write_folder(folder / one.path, one.bundle.files)
        if zip and not _zip_path(folder / one.path).exists():
            _write_file(_zip_path(folder / one.path), zip_bytes(one.bundle.files))
    _write_file(folder / system_index.INDEX, system_index.index_bytes(index))
    return [folder / one.path for one in ready]


def _check_folder_name(flag: str, part: str) -> None:
    fault = "begins with a dot or dash" if part[:1] in (".", "-") else member_names.part_fault(part)
    if part and fault is not None:
        raise UsageError(f"{flag} {part!r} {fault}: choose a name that any file system takes")
    if not part:
        raise UsageError(f"{flag} is empty: it names a folder")


def _prepare(run_dir: Path) -> _Ready:
    """Return the checked bundle of ``run_dir``, or say why it cannot be handed in."""
    if not run_dir.is_dir():
        raise UsageError(f"{str(run_dir)!r} is not a run directory")
    files = members.read_folder(run_dir, layout.is_known)
    if RECORD not in files:
        raise BundleRefusedError(f"{str(run_dir)!r} is not finished: {_last_words(files)}")
    record = parse_record(files[RECORD], str(run_dir / RECORD))
    bundle = from_files(with_manifest(files))
    fault = _not_for_submission(record) or _not_sound(bundle)
    if fault is not None:
        raise BundleRefusedError(f"{str(run_dir)!r} cannot be submitted: {fault}")
    precision = record.precision.effective or record.precision.declared
    return _Ready(path=layout.bundle_path(record), precision=precision, bundle=bundle)


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


def _zip_path(target: Path) -> Path:
    return target.with_name(f"{target.name}.zip")


def _check_target(target: Path, bundle: Bundle) -> None:
    for path in (target, _zip_path(target)):
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


def _write_folder(target: Path, files: Mapping[str, bytes]) -> None:
    """Write ``files`` as the folder ``target`` in one step, unless it is there already."""
    if target.exists():
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=".llmb-", dir=target.parent))
    try:
        for name, content in files.items():
            (draft / name).parent.mkdir(parents=True, exist_ok=True)
            (draft / name).write_bytes(content)
        draft.chmod(0o755)  # mkdtemp makes it the owner's alone
        os.rename(draft, target)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _write_file(target: Path, content: bytes) -> None:
    """Write ``content`` to ``target`` in one step, unless it holds that already."""
    if target.exists() and target.read_bytes() == content:
        return
    draft = target.with_name(f".{target.name}.new")
    draft.write_bytes(content)
    os.replace(draft, target)
