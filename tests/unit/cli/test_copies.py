"""Copies of a committed bundle: each passes `llmb verify` alone, and none makes another row."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from functools import cache

import pytest
from click.testing import CliRunner

from llmb.cli import report
from llmb.records.bundle import from_files, parse_record, read_bundle
from llmb.records.finding import Verdict
from llmb.records.seeds import token_seed
from llmb.reproduction import links
from llmb.submission import layout, page
from llmb.submission.signatures import sign
from llmb.submission.verify import verify_bundle
from tests import builders, committed, needs
from tests.builders import with_manifest

ORIGINAL = committed.OF_0_1_0


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    if not ORIGINAL.is_dir():
        pytest.skip("no submissions beside these tests")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)


@cache
def original():
    return dict(read_bundle(ORIGINAL).files)


def copied(change):
    """Return the files of a copy whose record ``change`` has edited, and nothing else is."""
    files = {name: content for name, content in original().items() if name != "MANIFEST.json"}
    data = json.loads(files["record.json"])
    change(data, files)
    files["record.json"] = json.dumps(data, indent=1, ensure_ascii=False).encode() + b"\n"
    if layout.PAGE in files:
        record = parse_record(files["record.json"], "record.json")
        files[layout.PAGE] = page.page_bytes(record)
    return from_files(with_manifest(files))


def put(root, who, bundle):
    return builders.write(root / who / "box" / "work" / "one", bundle.files)


def commit(root):
    who = ("-c", "user.name=A", "-c", "user.email=a@b.example")
    for words in (("init", "-q"), ("add", "."), ("commit", "-qm", "more")):
        subprocess.run(["git", *who, *words], cwd=root, check=True, capture_output=True)


def rows_of(root):
    """Return the rows by submitter, and the reasons of those refused by theirs."""
    done = CliRunner().invoke(report.command, [str(root), "--json"], catch_exceptions=False)
    board = json.loads(done.stdout)
    rows = [*(row for group in board["groups"] for row in group["rows"]), *board["apart"]]
    refused = {one["path"].partition("/")[0]: one["reason"] for one in board["refused"]}
    return {row["submitter"]: row for row in rows}, refused


def test_one_run_under_many_names_is_one_row_that_of_its_owner_or_none(tmp_path):
    needs.program("git")
    tree = tmp_path / "tree"
    put(tree, "owner", from_files(original()))
    commit(tree)
    thieves = [f"aaa{n}" for n in range(3)]
    for n, name in enumerate(thieves):
        renamed = copied(lambda data, _, n=n: data.update(run_id=f"{n:032x}"))
        put(tree, name, renamed)
    rows, refused = rows_of(tree)
    assert list(rows) == ["owner"]
    assert refused.keys() == set(thieves)
    commit(tree)
    rows, refused = rows_of(tree)
    assert list(rows) == ["owner"]
    for reason in refused.values():
        assert reason.startswith("clash: its evidence/repeat-0/")
        assert reason.endswith("is that of 'owner/box/work/one'")
    shutil.rmtree(tree / ".git")
    rows, refused = rows_of(tree)
    assert rows == {}
    assert refused.keys() == {"owner", *thieves}


def test_whoever_takes_a_run_id_into_a_folder_that_sorts_first_is_refused(tmp_path):
    needs.program("git")
    tree = tmp_path / "tree"
    put(tree, "owner", from_files(original()))
    commit(tree)
    put(tree, "aaa", copied(lambda data, _: data.update(created_utc="1999-01-01T00:00:00Z")))
    commit(tree)
    rows, refused = rows_of(tree)
    assert list(rows) == ["owner"]
    assert refused == {"aaa": "clash: its run id is that of 'owner/box/work/one'"}


def test_a_bundle_is_not_reproduced_by_its_own_evidence_under_another_seed_and_key(tmp_path):
    needs.program("ssh-keygen")
    keys = [tmp_path / name for name in ("one", "other")]
    for key in keys:
        words = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)]
        subprocess.run(words, check=True)
    first = sign(from_files(original()), keys[0])
    seed, theirs = 4711, first.record()

    def again(data, files):
        data["run_id"], data["config"]["seed"] = "f" * 32, seed
        data["reproduction_of"] = {
            "bundle_id": first.bundle_id,
            "run_id": theirs.run_id,
            "tokens_per_second": theirs.result.tokens_per_second,
            "ci95": list(theirs.result.ci95),
            "difference_percent": 0.0,
        }
        for name in ("steps.json", "probed.json"):
            path = f"evidence/repeat-0/{name}"
            said = json.loads(files[path])
            for step in said.get("steps", [said]):
                index = step.get("index", step.get("last_step"))
                step["token_seed"] = token_seed(seed, 0, index)
            files[path] = json.dumps(said, indent=1).encode() + b"\n"

    forged = sign(copied(again), keys[1])
    found = [verify_bundle(bundle) for bundle in (first, forged)]
    assert [one.ok for one in found] == [True, True], "each is consistent"
    members = [
        links.Member(one.bundle_id, one.record, frozenset(s.fingerprint for s in one.signatures))
        for one in found
    ]
    standing = links.standings(members)[first.bundle_id]
    assert standing.verdict is Verdict.REPRODUCED, "but for the evidence nothing is lacking"
    for who, bundle in (("owner", first), ("forger", forged)):
        put(tmp_path / "tree", who, bundle)
    assert rows_of(tmp_path / "tree")[0] == {}
    needs.program("git")
    shutil.move(tmp_path / "tree" / "forger", tmp_path / "forger")
    commit(tmp_path / "tree")
    shutil.move(tmp_path / "forger", tmp_path / "tree" / "forger")
    rows, refused = rows_of(tmp_path / "tree")
    assert rows["owner"]["verdict"] == "CONSISTENT"
    assert rows["owner"]["repeated_by"] == []
    assert refused.keys() == {"forger"}
