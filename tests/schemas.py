"""Write the published JSON Schemas of llmb's files: ``python -m tests.schemas``.

Each is made from the model that llmb writes the file with. A schema has the version of the file in
its name: that of an older version stays where it is, as do the files of that version.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pydantic import BaseModel

import llmb
from llmb.comparison.data import CompareReport
from llmb.records import bundle, finding, node_report, run_record, seed_commitment, system
from llmb.records.system_index import INDEX_SCHEMA, SystemIndex
from llmb.sweep import directory, overview, plan

FOLDER = Path(llmb.__file__).parent / "records" / "schemas"
DRAFT = "https://json-schema.org/draft/2020-12/schema"

#: Schema as the file itself names it -> the model. ``audit.json`` and ``system.json`` of a run are
#: parts of its record, and have its version.
CURRENT: dict[str, type[BaseModel]] = {
    run_record.SCHEMA: run_record.RunRecord,
    "llmb.audit/1": finding.Audit,
    "llmb.system/1": system.SystemDescription,
    bundle.BUNDLE_SCHEMA: bundle.Manifest,
    INDEX_SCHEMA: SystemIndex,
    seed_commitment.SCHEMA: seed_commitment.SeedCommitment,
    node_report.SCHEMA: node_report.NodeReport,
    plan.SCHEMA: plan.SweepPlan,
    directory.POINT_SCHEMA: directory.Ended,
    overview.SCHEMA: overview.Overview,
    "llmb.compare/1": CompareReport,
}


def file_of(name: str) -> Path:
    """Return where the schema ``name`` is published. Example: ``llmb.run/1`` is ``run-1.json``."""
    return FOLDER / f"{name.removeprefix('llmb.').replace('/', '-')}.json"


def schema_of(name: str) -> dict[str, Any]:
    """Return the JSON Schema of files that name themselves ``name``."""
    made = CURRENT[name].model_json_schema(by_alias=True)
    if "schema" in made["properties"]:  # a default for those who make one, never left out
        made["required"] = sorted({"schema", *made["required"]})
    return {**made, "$schema": DRAFT, "title": name}


def text_of(name: str) -> str:
    """Return the published file of schema ``name``."""
    return json.dumps(schema_of(name), indent=1, sort_keys=True, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for each in CURRENT:
        file_of(each).write_text(text_of(each))
