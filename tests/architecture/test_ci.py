"""What `.ci/run` makes is what the parts are, and what GitHub's workflow makes as parallel jobs."""

from __future__ import annotations

import configparser
import re
from pathlib import Path

import pytest

from tests import parts

ROOT = Path(__file__).resolve().parents[2]
CI_RUN = ROOT / ".ci" / "run"
WORKFLOW = ROOT / ".github" / "workflows" / "ci.yml"


def text(path: Path) -> str:
    if not path.exists():
        pytest.skip(f"no {path.name} beside these tests")
    return path.read_text()


def expanded(names: set[str]) -> set[str]:
    return {part for name in names for part in parts.SETS.get(name, (name,))}


def made_by_ci_run() -> set[str]:
    script = text(CI_RUN)
    named = re.findall(r"^ *tox \S+ -e (\w+) \|\|", script, re.MULTILINE)
    return {*named, *re.findall(r"^ *vendor (\w+)$", script, re.MULTILINE)}


def made_by_the_workflow() -> set[str]:
    (every,) = re.findall(r"env: \[(\w+)\]", text(WORKFLOW))
    return {every, *re.findall(r"\{ env: (\w+),", text(WORKFLOW))}


def test_ci_leaves_no_part_out() -> None:
    assert expanded(made_by_ci_run()) == {*parts.PARTS}


def test_the_workflow_makes_what_ci_run_makes() -> None:
    assert expanded(made_by_the_workflow()) == expanded(made_by_ci_run())


def test_every_part_has_an_environment_and_a_reader_is_told_what_it_is() -> None:
    tox = configparser.ConfigParser(interpolation=None)
    tox.read_string(text(ROOT / "tox.ini"))
    told = {
        name: tox[section].get("description")
        for section in tox.sections()
        for name in re.sub(r"^testenv:|[{}]", "", section).split(",")
    }
    assert all(told.get(name) for name in (*parts.PARTS, *parts.SETS) if name != "vendors")


def test_plain_tox_makes_the_quick_set() -> None:
    assert re.search(r"^env_list = quick$", text(ROOT / "tox.ini"), re.MULTILINE)


USES = [
    (path.name, line.split("uses: ", 1)[1])
    for path in sorted(WORKFLOW.parent.glob("*.yml"))
    for line in path.read_text().splitlines()
    if "uses: " in line
]


@pytest.mark.parametrize("workflow", sorted({name for name, _ in USES}))
def test_every_foreign_action_is_named_by_its_commit_and_a_workflow_has_no_rights(
    workflow: str,
) -> None:
    named = [action for name, action in USES if name == workflow and not action.startswith("./")]
    assert named
    assert [one for one in named if not re.fullmatch(r"[\w/-]+@[0-9a-f]{40} # v\d\S*", one)] == []
    assert re.search(r"^permissions: \{\}$", text(WORKFLOW.parent / workflow), re.MULTILINE)


def test_only_jobs_that_run_nothing_of_the_repository_may_publish() -> None:
    release = text(WORKFLOW.parent / "release.yml")
    jobs = re.split(r"^  (?=[\w-]+:$)", release.partition("\njobs:\n")[2], flags=re.MULTILINE)
    able = [job for job in jobs if re.search(r": write\b", job)]
    assert [job.partition(":")[0] for job in able] == ["publish-wheel", "publish-container"]
    for job in able:
        assert "github.ref_type == 'tag'" in job
        assert "actions/checkout" not in job
