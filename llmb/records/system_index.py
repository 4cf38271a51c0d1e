"""The index of a submitted system, ``system.json`` above its bundles: what was handed in, by whom.

Outside every bundle and its digests: it says what a submitter declares, and where bundles lie.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, ConfigDict, Field

from llmb.config import Frozen
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
    """Return why ``text`` cannot be the reason for a missing precision, or None if it can."""
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
    """The bundles of one precision, by path below the system, or why there is none."""

    bundles: tuple[Annotated[str, AfterValidator(_path)], ...] = ()
    missing: Annotated[str, AfterValidator(_reason)] | None = None


class SystemIndex(Frozen):
    """Everything one submitter has handed in for one system."""

    model_config = ConfigDict(populate_by_name=True)

    schema_: Literal["llmb.system-index/2"] = Field(alias="schema", default=INDEX_SCHEMA)
    submitter: Title
    system: Title
    #: Declared by the submitter, None where nothing was.
    availability: Availability | None = None
    precisions: dict[Title, Submitted]


def read_index(path: Path) -> SystemIndex:
    """Return the index in file ``path``, which lies in ``<submitter>/<system>/``.

    Raises:
        UsageError: there is no such file.
        BundleRefusedError: not an index this llmb can read, or it names another submitter or
            system than the folders it lies in.
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
