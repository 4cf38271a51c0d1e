"""The index of a submitted system: which precisions were handed in, and why others were not."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from pydantic import ConfigDict, Field

from llmb.config import Frozen
from llmb.errors import BundleRefusedError, UsageError
from llmb.records import members, strict_json
from llmb.records.bundle import MANIFEST, parse_model, read_bundle
from llmb.records.canonical import pretty_bytes

INDEX = "system.json"
INDEX_SCHEMA: Literal["llmb.system-index/1"] = "llmb.system-index/1"
PRECISIONS = ("FP32", "TF32", "FP16", "BF16")
_NO_REASON = "no run submitted"


class Submitted(Frozen):
    """The bundles of one precision, by path below the system, or why there is none."""

    bundles: tuple[str, ...] = ()
    missing: str | None = None


class SystemIndex(Frozen):
    """Everything one submitter has handed in for one system."""

    model_config = ConfigDict(populate_by_name=True)

    schema_: Literal["llmb.system-index/1"] = Field(alias="schema", default=INDEX_SCHEMA)
    submitter: str
    system: str
    precisions: dict[str, Submitted]


def existing_bundles(folder: Path) -> dict[str, str]:
    """Return path below ``folder`` -> precision of every bundle that is there already.

    Raises:
        BundleRefusedError: one of them is damaged.
    """
    found = {}
    for manifest in sorted(folder.glob(f"[!.]*/[!.]*/{MANIFEST}")):
        bundle = manifest.parent
        try:
            precision = read_bundle(bundle).record().precision
        except BundleRefusedError as error:
            message = f"the bundle already in {str(bundle)!r} is damaged, remove it first: {error}"
            raise BundleRefusedError(message) from None
        name = bundle.relative_to(folder).as_posix()
        found[name] = precision.effective or precision.declared
    return found


def make(
    folder: Path, submitter: str, bundles: Mapping[str, str], reasons: Mapping[str, str]
) -> SystemIndex:
    """Return the index of ``bundles`` (path -> precision); earlier ``reasons`` in it are kept.

    Raises:
        UsageError: a reason is given for a precision that was handed in.
        BundleRefusedError: the index that is there already cannot be read.
    """
    for precision in reasons.keys() & set(bundles.values()):
        raise UsageError(f"--missing {precision}=...: a bundle in {precision} is there")
    reasons = {**_earlier_reasons(folder / INDEX), **reasons}
    names = dict.fromkeys([*PRECISIONS, *sorted({*bundles.values(), *reasons})])
    precisions = {}
    for name in names:
        paths = tuple(sorted(path for path, has in bundles.items() if has == name))
        missing = None if paths else reasons.get(name, _NO_REASON)
        precisions[name] = Submitted(bundles=paths, missing=missing)
    return SystemIndex(submitter=submitter, system=folder.name, precisions=precisions)


def index_bytes(index: SystemIndex) -> bytes:
    """Return ``index`` as it is written to disk."""
    return pretty_bytes(index)


def _earlier_reasons(path: Path) -> dict[str, str]:
    if not path.exists():
        return {}
    data = strict_json.loads(members.read_file(path), str(path))
    index = parse_model(SystemIndex, data, str(path))
    return {name: entry.missing for name, entry in index.precisions.items() if entry.missing}
