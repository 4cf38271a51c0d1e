"""When a bundle came, by real repositories; what a repository asks for is not done."""

from __future__ import annotations

import os
import subprocess

import pytest

from llmb.submission.history import arrival
from tests import needs


@pytest.fixture
def git(tmp_path, monkeypatch):
    needs.program("git")
    for name in [name for name in os.environ if name.startswith("GIT_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)

    def run(*words):
        who = ("-c", "user.name=A", "-c", "user.email=a@b.example")
        subprocess.run(["git", *who, *words], cwd=tmp_path, check=True, capture_output=True)

    run("init", "-q", "-b", "main")
    return run


def put(root, name, text="{}"):
    (root / name).mkdir(parents=True, exist_ok=True)
    (root / name / "MANIFEST.json").write_text(text)
    return root / name


def commit(git, *paths):
    git("add", *paths)
    git("commit", "-qm", "more")


def test_the_commit_that_brought_a_bundle_counts_and_its_date_does_not(tmp_path, git, monkeypatch):
    monkeypatch.setenv("GIT_COMMITTER_DATE", "2030-01-01T00:00:00Z")
    first = put(tmp_path, "Acme/box/work/1")
    commit(git, ".")
    monkeypatch.setenv("GIT_COMMITTER_DATE", "2001-01-01T00:00:00Z")
    second = put(tmp_path, "Aaaa/box/work/1")
    commit(git, ".")
    assert (arrival(first).position, arrival(second).position) == (1, 2)
    assert arrival(first).repository == os.path.realpath(tmp_path)


def test_a_file_that_is_a_zip_has_its_own_commit(tmp_path, git):
    put(tmp_path, "a")
    commit(git, ".")
    (tmp_path / "b: [x].zip").write_bytes(b"PK")
    commit(git, ".")
    assert arrival(tmp_path / "b: [x].zip").position == 2


def test_what_is_not_committed_has_no_arrival(tmp_path, git):
    there = put(tmp_path, "there")
    assert arrival(there) is None
    commit(git, ".")
    assert arrival(there) is not None
    put(tmp_path, "there", "another")
    assert arrival(there) is None
    git("add", ".")
    assert arrival(there) is None


def test_a_bundle_put_in_the_place_of_an_older_one_came_with_its_own_commit(tmp_path, git):
    place = put(tmp_path, "mine", "older")
    commit(git, ".")
    owner = put(tmp_path, "owner", "good")
    commit(git, ".")
    put(tmp_path, "mine", "good")
    commit(git, ".")
    assert (arrival(owner).position, arrival(place).position) == (2, 3)


def test_the_merge_counts_and_not_the_day_on_which_its_branch_was_begun(tmp_path, git):
    (tmp_path / "readme").write_text("x")
    commit(git, ".")
    git("checkout", "-qb", "thief")
    thief = put(tmp_path, "thief")
    commit(git, ".")
    git("checkout", "-q", "main")
    owner = put(tmp_path, "owner")
    commit(git, ".")
    git("merge", "-q", "--no-ff", "-m", "merge", "thief")
    assert (arrival(owner).position, arrival(thief).position) == (2, 3)


def test_without_a_repository_or_git_there_is_no_history(tmp_path, git, monkeypatch):
    place = put(tmp_path, "there")
    commit(git, ".")
    monkeypatch.setenv("PATH", "")
    assert arrival(place) is None
    assert arrival(tmp_path / "missing") is None
    monkeypatch.undo()
    (tmp_path / ".git").rename(tmp_path / "gone")
    assert arrival(place) is None


def test_nothing_that_the_settings_of_a_repository_name_is_run(tmp_path, git):
    place = put(tmp_path, "there")
    commit(git, ".")
    trap, sprung = tmp_path / "trap.sh", tmp_path / "sprung"
    trap.write_text(f"#!/bin/sh\ntouch {sprung}\n")
    trap.chmod(0o755)
    hooks = tmp_path / ".git" / "hooks"
    for name in ("post-index-change", "post-checkout", "fsmonitor-watchman"):
        (hooks / name).parent.mkdir(exist_ok=True)
        (hooks / name).write_bytes(trap.read_bytes())
        (hooks / name).chmod(0o755)
    for name, value in {
        "core.fsmonitor": trap,
        "core.hooksPath": hooks,
        "core.pager": trap,
        "pager.rev-list": trap,
        "log.showSignature": "true",
        "gpg.program": trap,
        "diff.external": trap,
        "filter.x.clean": trap,
        "filter.x.smudge": trap,
        "diff.x.textconv": trap,
        "alias.rev-list": f"!{trap}",
    }.items():
        git("config", name, str(value))
    (tmp_path / ".gitattributes").write_text("* filter=x diff=x\n")
    assert arrival(place).position == 1
    assert not sprung.exists()
