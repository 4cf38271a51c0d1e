"""The index of a submitted system, ``system.json`` above the bundles: submitter and bundles.

The index is outside every bundle and every digest: a submitter declares facts and lists bundles.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from llmb.config import Frozen, JsonFile
from llmb.errors import BundleRefusedError
from llmb.records import member_names, members, migrations, strict_json
from llmb.records.bundle import parse_model
from llmb.records.submission import Availability, line_fault

INDEX = "system.json"
# Version history, one line per change; old versions are read through llmb.records.migrations.
# llmb.system-index/1  2026-11  first version.
# llmb.system-index/2  2026-11  availability added: null in indexes before.
INDEX_SCHEMA: Literal["llmb.system-index/2"] = "llmb.system-index/2"
_LONGEST_REASON = 300
PRECISIONS = ("FP32", "TF32", "FP16", "BF16")


def reason_fault(text: str) -> str | None:
    """Return why ``text`` cannot explain a missing precision, or None for a valid text."""
    return line_fault(text, _LONGEST_REASON)


def _name(text: str) -> str:
    fault = member_names.title_fault(text)
    if fault is not None:
        raise ValueError(fault)
    return text


def _reason(text: str) -> str:
    fault = reason_fault(text)
    if fault is not None:
        raise ValueError(fault)
    return text


def _path(text: str) -> str:
    parts = text.split("/")
    fault = next((found for part in parts if (found := member_names.part_fault(part))), None)
    if fault is not None or len(parts) != 2:
        raise ValueError(fault or "is not the path of a bundle below its system")
    return text


Title = Annotated[str, AfterValidator(_name)]


class Submitted(Frozen):
    """The bundles of one precision, by path below the system, or the reason for no bundle."""

    bundles: tuple[Annotated[str, AfterValidator(_path)], ...] = ()
    missing: Annotated[str, AfterValidator(_reason)] | None = None


class SystemIndex(JsonFile):
    """All bundles that one submitter has submitted for one system."""

    schema_: Literal["llmb.system-index/2"] = Field(alias="schema", default=INDEX_SCHEMA)
    submitter: Title
    system: Title
    #: Declared by the submitter, None if not declared.
    availability: Availability | None = None
    precisions: dict[Title, Submitted]


def read_index(path: Path) -> SystemIndex:
    """Return the index in file ``path``, which lies in ``<submitter>/<system>/``.

    Raises:
        UsageError: the file does not exist.
        BundleRefusedError: this llmb cannot read the index, or the index names another submitter or
            system than the folders around the file.
    """
    data = strict_json.loads(members.read_file(path), str(path))
    current = migrations.to_current(data, INDEX_SCHEMA, str(path), "an index of a system")
    index = parse_model(SystemIndex, current, str(path))
    folder = path.resolve().parent
    for what, said, place in (
        ("submitter", index.submitter, folder.parent.name),
        ("system", index.system, folder.name),
    ):
        if said != place:
            raise BundleRefusedError(f"{str(path)!r}: {what} {said!r} lies in a folder {place!r}")
    return index
