"""The table of verdicts by submitter."""

from __future__ import annotations

from llmb.report.board import board
from llmb.report.submitters import OUTCOMES, verdicts
from tests.unit.builders_board import believing, put, record


def counts(line):
    return {name: count for name, count in zip(OUTCOMES, line.counts, strict=True) if count}


def test_each_bundle_counts_once_under_its_submitter_and_outcome(tmp_path):
    def debug(data):
        data["class"] = "debug"

    put(tmp_path, record(1), "acme", "a")
    put(tmp_path, record(2, verdict="FLAGGED"), "acme", "b")
    put(tmp_path, record(3, change=debug), "acme", "c")
    put(tmp_path, record(4, verdict="INVALID"), "beta", "d")
    (put(tmp_path, record(5), "beta", "e") / "log.txt").write_text("edited")
    acme, beta = verdicts(board(believing([tmp_path])))
    assert (acme.submitter, counts(acme)) == ("acme", {"CONSISTENT": 1, "FLAGGED": 1, "debug": 1})
    assert (beta.submitter, counts(beta)) == ("beta", {"INVALID": 1, "refused": 1})
