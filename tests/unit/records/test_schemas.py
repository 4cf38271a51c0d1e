"""The published JSON Schemas are those of today's models, and hold every file that is committed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator, ValidationError

from llmb.records.canonical import as_json
from tests import builders, committed, schemas

#: Schemas that nobody writes any more, and their files as they were published: never changed.
OLDER = {
    "llmb.bundle/1": "ec907a5b30c9dacf4b5c812f5a0ef40dbee811ad0482d81dbf9fc1c4d3e1a6ff",
    "llmb.system-index/1": "9c694de89c05846f67b47009907b35966291c9e69998ccbe54ef82cce01b4493",
}
#: Files of a bundle or system -> the schema they have where they name none.
PARTS = {"audit.json": "llmb.audit/1", "system.json": "llmb.system/1"}


def validator(name: str) -> Draft202012Validator:
    schema = json.loads(schemas.file_of(name).read_text())
    Draft202012Validator.check_schema(schema)
    return Draft202012Validator(schema)


@pytest.mark.parametrize("name", schemas.CURRENT)
def test_the_published_schema_is_that_of_todays_model(name: str) -> None:
    assert schemas.file_of(name).read_text() == schemas.text_of(name), "python -m tests.schemas"
    Draft202012Validator.check_schema(schemas.schema_of(name))


def test_a_schema_of_an_older_version_is_kept_as_it_was() -> None:
    there = {path.name for path in schemas.FOLDER.glob("*.json")}
    assert there == {schemas.file_of(name).name for name in (*schemas.CURRENT, *OLDER)}
    for name, digest in OLDER.items():
        content = schemas.file_of(name).read_bytes()
        assert hashlib.sha256(content).hexdigest() == digest, name


def files() -> Iterator[Any]:
    for path in sorted(committed.SUBMISSIONS.glob("*/*/system.json")):
        yield pytest.param(path, id=path.parent.name)
    bundles = (
        *committed.SUBMISSIONS.glob("*/*/*/*/MANIFEST.json"),
        *committed.OLDER.glob("*/MANIFEST.json"),
    )
    for manifest in sorted(bundles):
        for name in ("MANIFEST.json", "record.json", *PARTS):
            yield pytest.param(manifest.with_name(name), id=f"{manifest.parent.name}-{name}")


@pytest.mark.parametrize("path", [*files()])
def test_every_committed_file_is_of_its_published_schema(path: Path) -> None:
    data = json.loads(path.read_text())
    validator(data.get("schema") or PARTS[path.name]).validate(data)


def test_a_record_with_a_field_too_many_or_too_few_is_not_of_the_schema() -> None:
    whole = as_json(builders.make_record(1))
    check = validator("llmb.run/1")
    check.validate(whole)
    more, fewer, other = deepcopy(whole), deepcopy(whole), deepcopy(whole)
    more["timing"]["luck"] = 1
    del fewer["timing"]["fence_ns"]
    other["run_id"] = "one"
    for wrong in (more, fewer, other):
        with pytest.raises(ValidationError):
            check.validate(wrong)


def test_a_manifest_whose_submitter_is_no_id_is_not_of_the_schema() -> None:
    manifest = json.loads(builders.bundle_files(builders.make_record(1))["MANIFEST.json"])
    check = validator("llmb.bundle/2")
    check.validate(manifest)
    manifest["submission"]["submitter"] = "Acme"
    with pytest.raises(ValidationError):
        check.validate(manifest)
