"""Marked as declared is what `llmb verify` passes with another value of, no more and no less."""

from __future__ import annotations

import copy
import json
import typing
from fnmatch import fnmatchcase
from functools import cache

import pytest

from llmb.errors import LlmbError
from llmb.records import declared
from llmb.records.bundle import from_files, parse_record, read_bundle
from llmb.records.declared import DECLARED, DECLARED_BY_PLACE, marked
from llmb.records.run_record import RunRecord
from llmb.submission import layout, page, rejudge
from llmb.submission.verify import verify_bundle
from tests import committed
from tests.builders import with_manifest

BUNDLES = (*committed.bundles("llama-45m"), *committed.bundles("llama-410m", "xpu"))


@cache
def files_of(path):
    if not path.is_dir():
        pytest.skip("no bundles beside these tests")
    return dict(read_bundle(path).files)


def failed(files, data):
    """Return the checks that fail where the record is ``data``, and its copies with it."""
    made = {name: content for name, content in files.items() if name != "MANIFEST.json"}
    for name, part in (("record.json", data), ("system.json", data["system"])):
        made[name] = json.dumps(part, indent=1, ensure_ascii=False).encode() + b"\n"
    made["audit.json"] = json.dumps(data["audit"], indent=1, ensure_ascii=False).encode() + b"\n"
    if layout.PAGE in made:
        made[layout.PAGE] = page.page_bytes(parse_record(made["record.json"], "record.json"))
    checks = verify_bundle(from_files(with_manifest(made))).checks
    return [f"{check.name}: {check.message}" for check in checks if not check.ok]


def leaves(value, path=()):
    """Yield the path of every value that is no table and no list of tables."""
    if isinstance(value, dict) and value:
        for key, part in value.items():
            yield from leaves(part, (*path, key))
    elif isinstance(value, list) and value and isinstance(value[0], dict):
        for n, part in enumerate(value):
            yield from leaves(part, (*path, n))
    else:
        yield path


def pattern_of(path):
    """Return which of the declared fields ``path`` is or belongs to, None where none."""
    name = ".".join(map(str, path))
    found = (one for one in DECLARED if fnmatchcase(name, one) or fnmatchcase(name, f"{one}.*"))
    return next(found, None)


@cache
def words():
    """Return every word that some field of a record chooses from, such as ``inductor``."""
    seen, found, todo = set(), set(), [RunRecord]
    while todo:
        kind = todo.pop()
        if typing.get_origin(kind) is typing.Literal:
            found.update(word for word in typing.get_args(kind) if isinstance(word, str))
            continue
        todo += [part for part in typing.get_args(kind) if part is not Ellipsis]
        if hasattr(kind, "model_fields") and kind not in seen:
            seen.add(kind)
            todo += [field.annotation for field in kind.model_fields.values()]
    return sorted(found)


def others(value):
    """Yield other values of the kind of ``value``."""
    if isinstance(value, bool):
        yield not value
    elif isinstance(value, int):
        yield from (value + 1, value - 1, value + 1000)
    elif isinstance(value, float):
        yield from (value * 1.001, value * 1.5)
    elif isinstance(value, str):
        yield from (value + "x", "1" + value[1:], "0" + value[1:])
        yield from (word for word in words() if word != value)
    elif isinstance(value, list):
        yield from ([one, *value[1:]] for one in others(value[0])) if value else (["x"], [1])
    elif isinstance(value, dict):
        yield from ({"x": "y"}, {"x": 1.0})
    else:
        yield from ("x", 1, 1.5)


def changed(data, path):
    """Yield ``data`` with other values at ``path``, those that a record can hold first."""
    at = data
    for key in path:
        at = at[key]
    for value in others(at):
        made = copy.deepcopy(data)
        there = made
        for key in path[:-1]:
            there = there[key]
        there[path[-1]] = value
        try:
            parse_record(json.dumps(made).encode(), "record.json")
        except LlmbError:
            continue
        if value != at:
            yield made


@pytest.mark.parametrize("path", BUNDLES, ids=lambda path: path.name)
def test_with_another_value_of_every_declared_field_a_bundle_passes(path):
    files = files_of(path)
    data, used = json.loads(files["record.json"]), set()
    for path in list(leaves(data)):
        if (pattern := pattern_of(path)) is None:
            continue
        made = next(changed(data, path), None)
        if made is not None:
            data = made
            used.add(pattern)
    assert failed(files, data) == []
    # No committed bundle is of several ranks: test_recompute_links has their fields.
    assert used == {name for name in DECLARED if not name.startswith("interconnect.")}


@pytest.mark.full
def test_with_another_value_of_any_other_field_alone_a_bundle_is_refused(monkeypatch):
    """What no other value fits in is passed over; of lists, one entry that is held is enough."""
    judge, judged = rejudge.judge, {}

    def once(bundle, record):
        facts = rejudge.facts_of(record, rejudge.plugin_digests(bundle), {})
        rejudge._check_optimizer(bundle, record)
        if repr(facts) not in judged:
            judged[repr(facts)] = judge(bundle, record)
        return judged[repr(facts)]

    monkeypatch.setattr(rejudge, "judge", once)
    files = files_of(BUNDLES[0])
    data = json.loads(files["record.json"])
    held = {}
    for path in leaves(data):
        name = ".".join("*" if isinstance(key, int) else key for key in path)
        if held.get(name) or pattern_of(path) is not None:
            continue
        made = next(changed(data, path), None)
        if made is not None:
            held[name] = failed(files, made) != []
    assert [name for name, is_held in held.items() if not is_held] == []
    assert len(held) > 100


def test_every_mark_of_a_page_is_of_a_declared_field():
    fields = {*DECLARED, *DECLARED_BY_PLACE}
    for name, field in declared._SHOWN.items():
        assert any(field == one or field.startswith(f"{one}.") for one in fields), name
    assert marked("Device") == "Device (declared)"
    assert marked("MFU") == "MFU"
