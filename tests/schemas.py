"""Write the published JSON Schemas of llmb's files, and the table of keys in docs/workloads.md.

    python -m tests.schemas

Each is made from the model that llmb writes the file with. A schema has the version of the file in
its name: that of an older version stays where it is, as do the files of that version.
"""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

import llmb
from llmb.comparison.data import CompareReport
from llmb.families import SHAPES
from llmb.history import baseline, line
from llmb.records import (
    bundle,
    finding,
    node_report,
    run_record,
    seed_commitment,
    sweep_overview,
    system,
)
from llmb.records.system_index import INDEX_SCHEMA, SystemIndex
from llmb.sweep import directory
from llmb.workloads import definition

FOLDER = Path(llmb.__file__).parent / "records" / "schemas"
KEYS = Path(__file__).resolve().parents[1] / "docs" / "workloads.md"
_BEGIN = "<!-- from llmb/workloads/definition.py by `python -m tests.schemas` -->\n"
_END = "<!-- end of the table of keys -->\n"
DRAFT = "https://json-schema.org/draft/2020-12/schema"
_WIDTH = 100  # most characters of a line, comma included

#: Schema as the file itself names it -> the model, or a union of models. ``audit.json`` and
#: ``system.json`` of a run are parts of its record, and have its version.
CURRENT: dict[str, Any] = {
    run_record.SCHEMA: run_record.RunRecord,
    "llmb.audit/1": finding.Audit,
    "llmb.system/1": system.SystemDescription,
    bundle.BUNDLE_SCHEMA: bundle.Manifest,
    INDEX_SCHEMA: SystemIndex,
    seed_commitment.SCHEMA: seed_commitment.SeedCommitment,
    node_report.SCHEMA: node_report.NodeReport,
    sweep_overview.PLAN_SCHEMA: sweep_overview.SweepPlan,
    directory.POINT_SCHEMA: directory.Ended,
    sweep_overview.OVERVIEW_SCHEMA: sweep_overview.Overview,
    "llmb.compare/1": CompareReport,
    line.SCHEMA: line.HistoryLine,
    baseline.SCHEMA: baseline.BaselineDecision,
    definition.SCHEMA: definition.FILE,
}


def file_of(name: str) -> Path:
    """Return where the schema ``name`` is published. Example: ``llmb.run/1`` is ``run-1.json``."""
    return FOLDER / f"{name.removeprefix('llmb.').replace('/', '-')}.json"


def schema_of(name: str) -> dict[str, Any]:
    """Return the JSON Schema of files that name themselves ``name``."""
    made = _untitled(TypeAdapter(CURRENT[name]).json_schema(by_alias=True))
    if "schema" in made.get("properties", {}):  # a default for those who make one, never left out
        made["required"] = sorted({"schema", *made["required"]})
    return {**made, "$schema": DRAFT, "title": name}


def text_of(name: str) -> str:
    """Return the published file of schema ``name``."""
    return f"{laid_out(schema_of(name))}\n"


def laid_out(value: Any, indent: int = 0, before: int = 0) -> str:
    """Return ``value`` as JSON with sorted keys: on one line if it fits, as most fields do.

    ``before``: characters on the line before ``value``, beside the indentation.
    """
    line = json.dumps(value, sort_keys=True, ensure_ascii=False)
    if not isinstance(value, (dict, list)) or indent + before + len(line) < _WIDTH:
        return line
    if isinstance(value, list):
        rows = [laid_out(each, indent + 1) for each in value]
    else:
        keys = {f"{json.dumps(key)}: ": value[key] for key in sorted(value)}
        rows = [key + laid_out(each, indent + 1, len(key)) for key, each in keys.items()]
    space = "\n" + " " * indent
    return f"{line[0]}{space} {f',{space} '.join(rows)}{space}{line[-1]}"


def _untitled(schema: Any) -> Any:
    """Return ``schema`` without titles: pydantic repeats the name of each field and class."""
    if isinstance(schema, list):
        return [_untitled(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: _untitled(value)
        for key, value in schema.items()
        if key != "title" or not isinstance(value, str)
    }


def table_of_keys() -> str:
    """Return the Markdown table of the keys of a workload file."""
    kinds = f"Kind of model: {', '.join(SHAPES)}."
    rows = [
        ("family", kinds, "none"),
        ("schema", "Version of the format.", definition.SCHEMA),
        ("name", "Name in records and tables.", "the name of the file, without .json"),
    ]
    for key, size in definition.SIZES.items():
        families: dict[str, list[str]] = {}
        for family, kind in SHAPES.items():
            if any(field.name == key for field in fields(kind)):
                families.setdefault(definition.default_of(family, key), []).append(family)
        defaults = (f"{', '.join(names)}: {default}" for default, names in families.items())
        rows.append((key, size.description, "; ".join(defaults)))
    lines = ["| key | meaning | default |", "|---|---|---|"]
    return "\n".join(
        [*lines, *(f"| `{key}` | {text} | {value} |" for key, text, value in rows), ""]
    )


def page_of_keys(page: str) -> str:
    """Return ``page`` with the present table of keys."""
    before, _, rest = page.partition(_BEGIN)
    return f"{before}{_BEGIN}{table_of_keys()}{_END}{rest.partition(_END)[2]}"


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for each in CURRENT:
        file_of(each).write_text(text_of(each))
    KEYS.write_text(page_of_keys(KEYS.read_text()))
