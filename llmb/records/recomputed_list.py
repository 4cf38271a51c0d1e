"""``recomputed.json`` beside the submitters' folders: the runs that a maintainer has recomputed.

A bundle cannot state the recomputation of the bundle's own run. A pull request cannot change the
file (``llmb verify --tree``).
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from llmb.config import Frozen, JsonFile
from llmb.records import members, strict_json
from llmb.records.bundle import parse_model

RECOMPUTED = "recomputed.json"
# Version history, one line per change.
# llmb.recomputed/1  2026-11  first version.
SCHEMA: Literal["llmb.recomputed/1"] = "llmb.recomputed/1"


class Recomputation(Frozen):
    """A run that was recomputed from seed and nonce, and agreed with the run's evidence."""

    llmb_version: str = Field(max_length=100)
    #: Day of the computation, UTC.
    date: str = Field(pattern=r"^\d{4}-\d{2}-\d{2}$")
    #: Number of recomputed steps, and of steps in the evidence.
    steps: int = Field(ge=0)
    of_steps: int = Field(ge=0)


class RecomputedList(JsonFile):
    """Bundle id -> facts of the recomputation."""

    schema_: Literal["llmb.recomputed/1"] = Field(alias="schema", default=SCHEMA)
    bundles: dict[Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")], Recomputation] = Field(
        default_factory=dict
    )


def read_recomputed(folder: Path) -> RecomputedList:
    """Return the list in ``folder``, an empty list without a file.

    Raises:
        BundleRefusedError: the file is no list of recomputed bundles.
    """
    path = folder / RECOMPUTED
    if not path.is_file():
        return RecomputedList()
    return parse_model(
        RecomputedList, strict_json.loads(members.read_file(path), str(path)), str(path)
    )
