"""Commit and branch of the folder around a run, without running code of the repository."""

from __future__ import annotations

import subprocess

import pytest

from llmb.records.repository import Head, head
from tests import needs


@pytest.fixture
def git(tmp_path):
    needs.program("git")

    def call(*words):
        command = ["git", "-c", "user.name=a", "-c", "user.email=a@b.c", *words]
        done = subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, text=True)
        return done.stdout.strip()

    call("init", "-qb", "main")
    call("commit", "-qm", "x", "--allow-empty")
    return call


def test_a_checkout_has_its_commit_and_its_branch(tmp_path, git) -> None:
    commit = git("rev-parse", "HEAD")
    (tmp_path / "below").mkdir()
    assert head(tmp_path / "below", {"GITHUB_REF_NAME": "other"}) == Head(commit, "main")


@pytest.mark.parametrize(
    ("variables", "branch"),
    [
        ({}, None),
        ({"GITHUB_REF_NAME": "7/merge", "GITHUB_HEAD_REF": "main"}, "7/merge"),
        ({"CI_COMMIT_REF_NAME": "topic"}, "topic"),
        ({"GITHUB_REF_NAME": "x" * 999}, "x" * 255),
    ],
    ids=["unknown", "a pull request named main", "GitLab", "a long name"],
)
def test_a_commit_without_a_branch_has_the_branch_of_the_service(tmp_path, git, variables, branch):
    commit = git("rev-parse", "HEAD")
    git("checkout", "-q", "--detach")
    assert head(tmp_path, variables) == Head(commit, branch)


def test_without_a_repository_nothing_is_known(tmp_path) -> None:
    assert head(tmp_path, {"GITHUB_REF_NAME": "main"}) == Head(None, None)
    assert head(tmp_path / "missing", {}) == Head(None, None)
