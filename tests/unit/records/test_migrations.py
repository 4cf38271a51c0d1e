"""Documents of older versions are brought to the present one, step by step; others are refused."""

from __future__ import annotations

import json

import pytest

from llmb.errors import BundleRefusedError
from llmb.records import migrations
from llmb.records.bundle import from_files, parse_record
from llmb.submission.verify import verify_bundle
from tests import builders
from tests.builders import with_manifest

CURRENT = "llmb.thing/3"


@pytest.fixture
def steps(monkeypatch):
    def first(data):
        return {"name": data["title"]}

    def second(data):
        return {**data, "size": None}

    monkeypatch.setattr(
        migrations, "STEPS", {"llmb.thing/1": first, "llmb.thing/2": second, "llmb.run/0": _run_0}
    )


def _run_0(data):
    """Return a record of an invented version, which called the plugin a vendor, as version 1."""
    data["plugin"] = data.pop("vendor")
    return data


def current(data):
    return migrations.to_current(data, CURRENT, "x.json", "a thing")


def test_a_document_of_the_present_version_is_left_as_it_is(steps):
    data = {"schema": CURRENT, "name": "a"}
    assert current(data) is data


def test_an_old_document_goes_through_every_step(steps):
    old = {"schema": "llmb.thing/1", "title": "a"}
    assert current(old) == {"schema": CURRENT, "name": "a", "size": None}
    assert old == {"schema": "llmb.thing/1", "title": "a"}, "what was read stays as it was"


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        ({"schema": "llmb.thing/4"}, "llmb.thing/4, made by a newer llmb: update llmb to read it"),
        ({"schema": "llmb.thing/0"}, "llmb.thing/0, which nobody reads"),
        ({"schema": "llmb.thing/1"}, "says it is of schema llmb.thing/1 and is not in that form"),
        ({"schema": "llmb.thing/03"}, "is not a thing"),
        ({"schema": "llmb.thing/3 "}, "is not a thing"),
        ({"schema": "llmb.things/3"}, "is not a thing"),
        ({"schema": "llmbxthing/3"}, "is not a thing"),
        ({"schema": 3}, "is not a thing"),
        ({}, "is not a thing: its schema is not llmb.thing/3"),
        ([], "is not a thing"),
        (None, "is not a thing"),
    ],
)
def test_what_cannot_be_read_is_refused_with_the_reason(steps, data, reason):
    with pytest.raises(BundleRefusedError, match=reason):
        current(data)


def test_a_bundle_of_an_older_record_is_verified_in_the_form_of_today(steps):
    record = builders.make_record(repeats=1)
    files = builders.run_files(record)
    data = json.loads(files["record.json"])
    data["vendor"] = data.pop("plugin")
    data["schema"] = "llmb.run/0"
    older = with_manifest(files | {"record.json": json.dumps(data, indent=1).encode()})
    verification = verify_bundle(from_files(older))
    assert verification.ok, [check for check in verification.checks if not check.ok]
    assert verification.record == record
    (said,) = [check.message for check in verification.checks if check.name == "schema"]
    assert said.startswith("llmb.run/0, read as llmb.run/1, ")


def test_what_an_older_record_hides_is_still_found(steps):
    record = builders.make_record(repeats=1)
    data = json.loads(builders.pretty_bytes(record))
    data["vendor"] = data.pop("plugin")
    data |= {"schema": "llmb.run/0", "more": 1}
    with pytest.raises(BundleRefusedError, match="more: Extra inputs"):
        parse_record(json.dumps(data).encode(), "record.json")


def test_the_steps_lead_from_each_version_to_one_that_is_read():
    from llmb.records.run_record import SCHEMA
    from llmb.records.system_index import INDEX_SCHEMA

    newest = dict(schema.split("/") for schema in (SCHEMA, INDEX_SCHEMA))
    for schema in migrations.STEPS:
        family, version = schema.split("/")
        for later in range(int(version), int(newest[family])):
            assert f"{family}/{later}" in migrations.STEPS
