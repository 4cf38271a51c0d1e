"""``recomputed.json`` beside the submitters' folders: whose runs a maintainer has computed again.

A bundle cannot say so of itself. A pull request cannot change the file (``llmb verify --tree``).
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from llmb.config import Frozen
from llmb.records import members, strict_json
from llmb.records.bundle import parse_model

RECOMPUTED = "recomputed.json"
# Version history, one line per change.
# llmb.recomputed/1  2026-11  first version.
SCHEMA: Literal["llmb.recomputed/1"] = "llmb.recomputed/1"


class Recomputation(Frozen):
    """One run that was computed again from its seed and nonce, and agreed with its evidence."""

    llmb_version: str = Field(max_length=100)
    #: Day of the computation, UTC.
    date: str = Field(pattern=r"^\d{4}-\d{2}-\d{2}$")
    #: Steps that were computed again, and steps that the evidence shows.
    steps: int = Field(ge=0)
    of_steps: int = Field(ge=0)


class RecomputedList(Frozen):
    """Bundle id -> how its run was computed again."""

    model_config = ConfigDict(populate_by_name=True)  # the rest is inherited from Frozen

    schema_: Literal["llmb.recomputed/1"] = Field(alias="schema", default=SCHEMA)
    bundles: dict[Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")], Recomputation] = Field(
        default_factory=dict
    )


def read_recomputed(folder: Path) -> RecomputedList:
    """Return the list in ``folder``, an empty one where there is none.

    Raises:
        BundleRefusedError: the file is not such a list.
    """
    path = folder / RECOMPUTED
    if not path.is_file():
        return RecomputedList()
    return parse_model(
        RecomputedList, strict_json.loads(members.read_file(path), str(path)), str(path)
    )
