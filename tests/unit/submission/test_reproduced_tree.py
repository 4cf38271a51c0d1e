"""A tree of two real official runs: the second organisation has repeated the first one's run.

Both runs were made by `llmb run` and `llmb reproduce` on one machine. The two organisations exist
in this tree alone; their private keys are gone. Ask for the page with
`llmb report tests/reproduced`.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from llmb.cli import report, verify
from tests.committed import ROOT

TREE = ROOT / "tests" / "reproduced"

pytestmark = pytest.mark.skipif(not TREE.is_dir(), reason="an sdist has no tree of bundles")


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return shutil.copytree(TREE, tmp_path / "tree")


def rows(tree: Path) -> dict[str, dict[str, Any]]:
    done = CliRunner().invoke(report.command, [str(tree), "--json"], catch_exceptions=False)
    found = json.loads(done.stdout)
    assert found["refused"] == []
    return {row["submitter"]: row for group in found["groups"] for row in group["rows"]}


def told(tree: Path) -> dict[str, Any]:
    """Return the two runs as `llmb report` tells them."""
    found = rows(tree)
    return {name: (row["verdict"], row["trust"]) for name, row in found.items()}


ALONE = ("CONSISTENT", "self-reported")


def test_the_original_is_reproduced_and_repeated_and_the_repetition_is_not(tree: Path) -> None:
    found = rows(tree)
    assert told(tree) == {"first-lab": ("REPRODUCED", "repeated"), "second-lab": ALONE}
    assert found["first-lab"]["repeated_by"] == [found["second-lab"]["bundle_id"]]
    assert found["first-lab"]["repeated_by_same_organisation"] == []
    assert found["first-lab"]["rank"] == 1, "what is trusted more stands first"


def test_the_tree_is_accepted_as_the_workflow_would(tree: Path) -> None:
    done = CliRunner().invoke(verify.command, ["--tree", str(tree)], catch_exceptions=False)
    assert done.exit_code == 0, done.output


def test_in_the_terminal_the_repetition_is_told_with_its_difference(tree: Path) -> None:
    done = CliRunner().invoke(verify.command, ["--all", str(tree)], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    assert "REPRODUCED" in done.output
    assert "repeated by" in done.output
    assert "changes nothing" not in done.output


def drop_signature(tree: Path) -> None:
    (signature,) = tree.glob("second-lab/*/*/*/SIGNATURES/*")
    signature.unlink()


def unlist(tree: Path) -> None:
    path = tree / "allowed_signers"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(line for line in lines if not line.startswith("second-lab")))


def one_organisation(tree: Path) -> None:
    path = tree / "allowed_signers"
    path.write_text(path.read_text().replace("Second Lab", "First Lab"))


@pytest.mark.parametrize("change", [drop_signature, unlist, one_organisation])
def test_without_a_second_listed_organisation_nothing_is_reproduced(
    tree: Path, change: Any
) -> None:
    change(tree)
    assert told(tree) == {"first-lab": ALONE, "second-lab": ALONE}
    again = rows(tree)["first-lab"]["repeated_by_same_organisation"]
    assert len(again) == (change is one_organisation)
