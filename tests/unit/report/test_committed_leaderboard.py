"""The committed leaderboard is the one that the committed bundles make."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from llmb.cli import report

SUBMISSIONS = Path(__file__).resolve().parents[3] / "submissions"


@pytest.mark.full  # the part `submissions` runs it
def test_the_committed_leaderboard_is_that_of_the_bundles(tmp_path, monkeypatch):
    if not SUBMISSIONS.is_dir():
        pytest.skip("no submissions beside these tests")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))  # every bundle is verified once
    for name in ("leaderboard.html", "leaderboard.md"):
        made = tmp_path / name
        words = [str(SUBMISSIONS), "--output", str(made)]
        assert CliRunner().invoke(report.command, words, catch_exceptions=False).stderr == ""
        assert (SUBMISSIONS / name).read_bytes() == made.read_bytes(), (
            f"submissions/{name} is not current: "
            f"llmb report submissions --output submissions/{name}"
        )
