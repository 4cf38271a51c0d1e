"""The committed bundles compared and exported by the real command, as a contract's script would."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest

from tests import patience
from tests.e2e.harness import environment, llmb_command

SUBMISSIONS = Path(__file__).resolve().parents[2] / "submissions"
BUNDLES = sorted(
    path.parent for path in SUBMISSIONS.glob("*/*/llama-1.4b_train_BF16/*/MANIFEST.json")
)
MET, USAGE, REFUSED, NOT_MET = 0, 2, 6, 7

pytestmark = pytest.mark.skipif(len(BUNDLES) < 2, reason="an sdist has no submissions")


def call(*words):
    return patience.run(llmb_command(*words), env=environment())


def test_a_contract_that_a_bundle_keeps_ends_with_0_and_says_every_figure() -> None:
    done = call(
        "compare",
        *BUNDLES[:2],
        "--require=verdict>=CONSISTENT",
        "--require=tokens_per_second>=0.5*base",
        "--json",
    )
    assert done.returncode == MET, done.stderr
    assert done.stderr == ""
    (one,) = json.loads(done.stdout)["comparisons"]
    assert [met["met"] for met in one["requirements"]] == [True, True]
    (rate,) = (ratio for ratio in one["ratios"] if ratio["name"] == "tokens_per_second")
    assert rate["ci95"][0] < rate["other"] / rate["base"] < rate["ci95"][1]
    assert 0 <= one["rank_test"]["p_value"] <= 1


def test_a_contract_that_a_bundle_breaks_ends_with_7_and_one_line() -> None:
    done = call("compare", *BUNDLES[:2], "--require=tokens_per_second>=1000*base")
    assert done.returncode == NOT_MET
    assert "\nNOT MET: tokens_per_second>=1000*base (" in done.stdout
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("llmb: 1 of 1 conditions not met: ")


def test_a_condition_that_is_none_ends_with_2_and_one_line() -> None:
    done = call("compare", *BUNDLES[:2], "--require=tokens_per_second>=fast")
    assert (done.returncode, done.stdout) == (USAGE, "")
    assert done.stderr.count("\n") == 1
    assert "Traceback" not in done.stderr


def test_a_record_edited_by_hand_is_refused(tmp_path) -> None:
    record = json.loads((BUNDLES[0] / "record.json").read_text())
    record["result"]["tokens_per_second"] *= 2
    (tmp_path / "record.json").write_text(json.dumps(record))
    done = call("compare", BUNDLES[1], tmp_path / "record.json")
    assert done.returncode == REFUSED
    assert "its stamps give" in done.stderr
    assert done.stdout == ""


def test_bundles_are_exported_to_a_file_that_reads_back(tmp_path) -> None:
    done = call("export", *BUNDLES, "--format", "csv", "--output", tmp_path / "runs.csv")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    lines = list(csv.DictReader(io.StringIO((tmp_path / "runs.csv").read_text())))
    stored = [json.loads((one / "record.json").read_text())["result"] for one in BUNDLES]
    for line, result in zip(lines, stored, strict=True):
        assert float(line["tokens_per_second"]) == pytest.approx(result["tokens_per_second"])
