"""The directive ``json-schema``: tables of the fields of one published JSON Schema file.

```{json-schema} ../llmb/records/schemas/audit-1.json
```
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective


def kind(schema: dict[str, Any]) -> str:
    """Return the type of a field in words, such as "array of Finding" or "number or null"."""
    if "$ref" in schema:
        return f"`{schema['$ref'].rpartition('/')[2]}`"
    if "const" in schema:
        return f"`{json.dumps(schema['const'])}`"
    if "enum" in schema:
        return " or ".join(f"`{json.dumps(value)}`" for value in schema["enum"])
    for every in ("anyOf", "oneOf"):
        if every in schema:
            return " or ".join(kind(each) for each in schema[every])
    if schema.get("type") == "array":
        items = schema.get("items") or {"type": "/".join(map(kind, schema.get("prefixItems", [])))}
        return f"array of {kind(items)}"
    values = schema.get("additionalProperties")
    if schema.get("type") == "object" and isinstance(values, dict):
        return f"object with values: {kind(values)}"
    return str(schema.get("type", "any"))


def limits(schema: dict[str, Any]) -> str:
    """Return the limits and the default of a field; empty without any."""
    words = {
        "minimum": "at least",
        "exclusiveMinimum": "more than",
        "maximum": "at most",
        "exclusiveMaximum": "less than",
        "minLength": "characters, at least",
        "maxLength": "characters, at most",
        "pattern": "pattern",
        "default": "default",
    }
    return ", ".join(f"{words[n]} `{json.dumps(v)}`" for n, v in schema.items() if n in words)


def table(schema: dict[str, Any]) -> Iterator[str]:
    """Yield the lines of Markdown for one object: its description, and a row for each field."""
    if "description" in schema:
        yield from (schema["description"], "")
    if "enum" in schema:
        yield from (f"One of {kind(schema)}.", "")
    rows = [
        {
            "field": f"`{name}`",
            "type": kind(field),
            "needed": "yes" if name in schema.get("required", []) else "no",
            "limits": limits(field),
            "meaning": field.get("description", "").replace("\n", " "),
        }
        for name, field in schema.get("properties", {}).items()
    ]
    if rows:
        columns = [name for name in rows[0] if any(row[name] for row in rows)]
        yield line(columns)
        yield line("---" for _ in columns)
        yield from (line(row[name].replace("|", "\\|") for name in columns) for row in rows)
        yield ""


def line(cells: Iterable[str]) -> str:
    """Return one row of a table."""
    return f"| {' | '.join(cells)} |"


class JsonSchema(SphinxDirective):
    """Tables of a schema file: its own fields, then those of each of its definitions."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Return the nodes of the tables."""
        relative, path = self.env.relfn2path(self.arguments[0])
        self.env.note_dependency(relative)
        schema = json.loads(Path(path).read_text(encoding="utf-8"))
        lines = list(table(schema))
        for name, definition in schema.get("$defs", {}).items():
            lines += [f"**{name}**", "", *table(definition)]
        return self.parse_text_to_nodes("\n".join(lines))


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the directive."""
    app.add_directive("json-schema", JsonSchema)
    return {"parallel_read_safe": True}
