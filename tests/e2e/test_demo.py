"""``llmb demo`` as a newcomer meets it: no options, in an empty folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from llmb.records.bundle import MANIFEST, read_record
from llmb.records.finding import Verdict
from llmb.submission.verify import verify
from tests.e2e import harness


@pytest.mark.quick
def test_the_demo_convicts_a_cheat_packages_the_honest_run_and_shows_its_own_measurements(
    tmp_path: Path,
) -> None:
    done = harness.call("demo", "--quiet", cwd=tmp_path)
    assert (done.code, done.stderr) == (0, "")
    (cheat,) = (tmp_path / "llmb-demo/runs").glob("*-cheat")
    audit = read_record(cheat).audit
    (found,) = (finding for finding in audit.findings if finding.id == "P1")
    assert audit.verdict is Verdict.INVALID
    assert f"cheat       {found.measured}" in done.stdout
    (manifest,) = (tmp_path / "llmb-demo").rglob(MANIFEST)
    verified = verify(manifest.parent)
    assert verified.ok
    assert verified.record.audit.verdict is Verdict.CONSISTENT
    assert verified.bundle_id in (tmp_path / "llmb-demo/leaderboard.html").read_text()
    assert "P1" in (cheat / "report.html").read_text()


@pytest.mark.quick
def test_the_demo_leaves_a_folder_with_other_files_alone(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    done = harness.call("demo", "--output-dir", tmp_path)
    assert (done.code, len(done.said)) == (2, 1)
    assert "holds other files" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]
