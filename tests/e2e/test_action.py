"""The scripts of the action, run by hand: a run on main, then a slower run of a pull request."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests import needs
from tests.e2e import harness

SCRIPTS = Path(__file__).resolve().parents[2] / "action"
#: Three times as slow as the machine: no other load of a busy host is mistaken for the step.
SLOWER = """
@hookimpl
def llmb_post_process_model(model, config):
    def before(calls, ids):
        if pathlib.Path("slower").exists():
            time.sleep(0.2)
    return Around(model, before)
"""

if not SCRIPTS.exists():
    pytest.skip("no action beside these tests", allow_module_level=True)
pytestmark = pytest.mark.full


@pytest.fixture
def workspace(tmp_path):
    """Return a repository on branch main, in which ``llmb`` and its scripts can be called."""
    needs.program("git")
    needs.program("bash")
    here = tmp_path / "workspace"
    here.mkdir()
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b.c"]
    for words in (["init", "-qb", "main"], ["commit", "-qm", "x", "--allow-empty"]):
        subprocess.run([*git, *words], cwd=here, check=True)
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "llmb").write_text(f'#!/bin/sh\nexec {sys.executable} -m llmb "$@"\n')
    (programs / "llmb").chmod(0o755)
    return here


def call(workspace: Path, script: str, **more: str) -> subprocess.CompletedProcess[str]:
    env = harness.environment(workspace / "plugins")
    env |= {
        "PATH": f"{workspace.parent / 'bin'}:{os.environ['PATH']}",
        "FOLDER": "llmb-history",
        "BASELINE": "main",
        "FAIL_ON": "regression",
        "BY": "25%",
        "GITHUB_STEP_SUMMARY": str(workspace / "step-summary.md"),
        "GITHUB_OUTPUT": str(workspace / "output"),
        **more,
    }
    command = ["bash", str(SCRIPTS / script)]
    return subprocess.run(
        command, cwd=workspace, env=env, capture_output=True, text=True, check=False
    )


def test_a_planted_regression_fails_and_an_equal_run_does_not(workspace: Path) -> None:
    harness.plugin(workspace / "plugins", "odd", SLOWER)
    flags = " ".join((*harness.with_plugin("odd"), "--timed-steps=50", "--audit=off"))
    measured = call(workspace, "measure.sh", ARGUMENTS=flags)
    assert measured.returncode == 0, measured.stderr
    first = call(workspace, "compare.sh")
    assert first.returncode == 0, first.stderr
    assert "not decided" in first.stdout
    assert "no run yet" in (workspace / "llmb-history/summary.md").read_text()

    subprocess.run(["git", "checkout", "-qb", "topic"], cwd=workspace, check=True)
    (workspace / "slower").touch()
    measured = call(workspace, "measure.sh", ARGUMENTS=flags)
    assert measured.returncode == 0, measured.stderr
    second = call(workspace, "compare.sh", MEASURE="tokens")
    assert second.returncode == 7, second.stdout + second.stderr
    assert "regression: tokens/s -" in second.stdout

    folder = workspace / "llmb-history"
    lines = [json.loads(line) for line in (folder / "history.jsonl").read_text().splitlines()]
    assert [line["branch"] for line in lines] == ["main", "topic"]
    assert lines[0]["work"] == lines[1]["work"]
    assert (json.loads((folder / "decision.json").read_text())[0]["outcome"]) == "regression"
    assert ElementTree.parse(folder / "junit.xml").find(".//failure") is not None
    assert "🔴 regression" in (workspace / "step-summary.md").read_text()
    assert (folder / "history.html").read_text().count("<circle") == 2


def test_the_key_of_a_branch_is_a_word_whatever_the_branch_is_called(workspace: Path) -> None:
    odd = "a,b; $(touch sprung)\n`x`"
    done = call(workspace, "key.sh", BRANCH=odd, BASELINE="main", SETTINGS="debug", RUN="1-1")
    assert done.returncode == 0, done.stderr
    found = dict(line.split("=") for line in (workspace / "output").read_text().splitlines())
    assert all(set(key) <= set("abcdefghijklmnopqrstuvwxyz-0123456789") for key in found.values())
    assert found["own"].startswith(found["own_prefix"])
    assert found["own_prefix"] != found["baseline_prefix"]
    assert not (workspace / "sprung").exists()
