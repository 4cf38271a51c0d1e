"""``.ci/changed-submissions`` names the bundles that a pull request touches, however named."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / ".ci" / "changed-submissions"


@pytest.fixture
def repository(tmp_path):
    if not SCRIPT.exists():
        pytest.skip("no .ci beside these tests")

    def git(*words):
        who = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
        subprocess.run(["git", *who, *words], cwd=tmp_path, check=True, capture_output=True)

    git("init", "-q")
    for name in ("old/box/work/one/record.json", "old/box/work/two/record.json", "README.md"):
        put(tmp_path, name)
    git("add", "-A")
    git("commit", "-qm", "before")
    git("tag", "base")
    return tmp_path, git


def put(root, name, text="x"):
    (root / "submissions" / name).parent.mkdir(parents=True, exist_ok=True)
    (root / "submissions" / name).write_text(text)


def changed(repository):
    root, git = repository
    git("add", "-A")
    git("commit", "-qm", "after", "--allow-empty")
    done = subprocess.run([SCRIPT, "base"], cwd=root, check=True, capture_output=True)
    return done.stdout.decode().split("\0")[:-1]


def test_nothing_changed_names_nothing(repository):
    assert changed(repository) == []


def test_new_edited_and_cut_bundles_are_named_once_and_others_are_not(repository):
    root, _ = repository
    put(root, "new/box/work/three/record.json")
    put(root, "new/box/work/three/plugin/a/b.py")
    put(root, "old/box/work/one/record.json", "edited")
    put(root, "README.md", "edited")
    put(root, "leaderboard.html")
    assert changed(repository) == [
        "submissions/new/box/work/three",
        "submissions/old/box/work/one",
    ]


def test_a_bundle_that_lost_one_file_is_named_and_one_that_is_gone_is_not(repository):
    root, git = repository
    put(root, "old/box/work/two/log.txt")
    git("add", "-A")
    git("commit", "-qm", "more")
    git("tag", "-f", "base")
    (root / "submissions/old/box/work/two/log.txt").unlink()
    shutil.rmtree(root / "submissions/old/box/work/one")
    assert changed(repository) == ["submissions/old/box/work/two"]


def test_names_with_spaces_breaks_and_dashes_come_through(repository):
    root, _ = repository
    put(root, "-a b/$(x)/w\nw/-rf/record.json")
    put(root, "a/b/c/stray.txt")
    assert changed(repository) == [
        "submissions/-a b/$(x)/w\nw/-rf",
        "submissions/a/b/c/stray.txt",
    ]
