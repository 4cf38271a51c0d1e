"""The composite action: no input in a script's text, pinned actions, scripts that a shell reads."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests import needs

ROOT = Path(__file__).resolve().parents[2]
ACTION = ROOT / "action.yml"
WORKFLOWS = ROOT / ".github" / "workflows"
SCRIPTS = sorted((ROOT / "action").glob("*.sh"))

if not ACTION.exists():
    pytest.skip("no action.yml beside these tests", allow_module_level=True)


@pytest.fixture(scope="module")
def action() -> dict[str, Any]:
    yaml = needs.module("yaml")
    found = yaml.safe_load(ACTION.read_text())
    assert found["runs"]["using"] == "composite"
    return found


def test_no_step_has_an_expression_in_the_text_of_its_script(action: dict[str, Any]) -> None:
    steps = [step for step in action["runs"]["steps"] if "run" in step]
    assert len(steps) == 5
    assert [step["name"] for step in steps if "${{" in step["run"]] == []
    assert {step["shell"] for step in steps} == {"bash"}


def test_every_script_is_run_by_one_step_and_can_be_run_by_hand(action: dict[str, Any]) -> None:
    called = [step["run"] for step in action["runs"]["steps"] if "run" in step]
    assert sorted(called) == [f'"$ACTION_PATH/action/{path.name}"' for path in SCRIPTS]
    assert all(os.access(path, os.X_OK) for path in SCRIPTS)


def test_every_variable_of_a_script_is_set_by_its_step(action: dict[str, Any]) -> None:
    steps = {step["run"]: step for step in action["runs"]["steps"] if "run" in step}
    for path in SCRIPTS:
        used = set(re.findall(r"\$\{?([A-Z][A-Z_]+)", path.read_text()))
        given = set(steps[f'"$ACTION_PATH/action/{path.name}"']["env"])
        assert used - given <= {"GITHUB_OUTPUT", "GITHUB_STEP_SUMMARY"}, path.name


def test_every_input_is_used_and_every_used_input_is_declared(action: dict[str, Any]) -> None:
    used = set(re.findall(r"inputs\.([a-z-]+)", ACTION.read_text()))
    assert used == set(action["inputs"])
    assert all("default" in one and one["description"] for one in action["inputs"].values())


def test_other_actions_are_pinned_by_commit() -> None:
    texts = [path.read_text() for path in (ACTION, *sorted(WORKFLOWS.glob("*.yml")))]
    uses = [use for text in texts for use in re.findall(r"uses: (\S+)(.*)", text)]
    loose = [
        use
        for use, rest in uses
        if use != "./" and not (re.search(r"@[0-9a-f]{40}$", use) and re.match(r" # v\d", rest))
    ]
    assert len(uses) > 10
    assert loose == []


def test_a_workflow_of_this_repository_uses_the_action_on_the_debug_preset() -> None:
    yaml = needs.module("yaml")
    workflow = yaml.safe_load((WORKFLOWS / "history.yml").read_text())
    (job,) = workflow["jobs"].values()
    (step,) = (step for step in job["steps"] if step.get("uses") == "./")
    assert step["with"]["preset"] == "debug"
    assert set(step["with"]) <= set(yaml.safe_load(ACTION.read_text())["inputs"])


def test_shellcheck_has_no_complaint_of_the_scripts() -> None:
    needs.program("shellcheck")
    command = ["shellcheck", *map(str, SCRIPTS)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
