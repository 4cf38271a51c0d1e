"""``llmb verify --recompute``: honest runs are accepted, copies are refused, by seed and nonce."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from llmb.cli.progress import display
from llmb.records import audited, evidence
from llmb.records.bundle import from_files, parse_record
from llmb.records.seeds import token_seed
from llmb.submission import recomputed_run
from llmb.submission.manifest import zip_bytes
from llmb.submission.recomputed_run import Recomputed
from tests.builders import with_manifest
from tests.cheats.conftest import files_of
from tests.e2e import harness
from tests.e2e.conftest import Once

Files = dict[str, bytes]
FLAGS = (*harness.TINY_RUN, "--precision=BF16", "--device=cpu", "--plugin=cpu")


@pytest.fixture(scope="session")
def honest(once: Once) -> Files:
    """The files of a tiny run with a seed and a nonce."""
    made = once("recomputed", lambda folder: harness.run(folder / "out", *FLAGS, *harness.SAME))
    return files_of(made)


@pytest.fixture(scope="session")
def other(once: Once) -> Files:
    """Those of a run with another seed and nonce, and with the window at the same place."""
    flags = ("--seed=8", f"--nonce={'08' * 16}")
    return files_of(once("other run", lambda f: harness.run(f / "out", *FLAGS, *flags)))


def packed(files: Files, folder: Path) -> Path:
    path = folder / "bundle.zip"
    path.write_bytes(zip_bytes(with_manifest(files)))
    return path


def edited(files: Files, name: str, **changes: Any) -> Files:
    data = json.loads(files[name]) | changes
    return files | {name: json.dumps(data).encode()}


def with_seed(files: Files, seed: int, nonce: str) -> Files:
    """Write another seed and nonce over a run, and all numbers that files show to follow."""
    record = json.loads(files["record.json"])
    record["config"]["seed"] = seed
    for timing in (record["timing"], *record["timing"]["repeats"]):
        timing["nonce"] = nonce
    files = files | {"record.json": json.dumps(record).encode()}
    steps, probed = (evidence.path(0, name) for name in (audited.STEPS, audited.PROBED))
    known = json.loads(files[steps])["steps"]
    changed = [one | {"token_seed": token_seed(seed, 0, one["index"], nonce)} for one in known]
    files = edited(files, steps, steps=changed)
    last = json.loads(files[probed])["last_step"]
    return edited(files, probed, token_seed=token_seed(seed, 0, last, nonce))


def recomputed(files: Files, extent: recomputed_run.Extent = "quick") -> Recomputed:
    """Make a run again whatever the checks of its files say: they may know the forgery, too."""
    bundle, record = from_files(with_manifest(files)), parse_record(files["record.json"], "record")
    planned = recomputed_run.plan(bundle, record, extent)
    with display(quiet=True) as shown:
        return recomputed_run.recompute(bundle, record, planned, shown)


def refused_parts(found: Recomputed) -> list[str]:
    return [one.what for one in found.compared if one.faults]


def test_the_command_accepts_an_honest_bundle_and_tells_what_it_takes(
    honest: Files, tmp_path: Path
) -> None:
    ended = harness.call("verify", "--recompute", packed(honest, tmp_path))
    assert ended.code == 0, ended.stdout
    assert "ok       recompute: 3 of " in ended.stdout
    assert re.search(r"recompute: 3 of .*GB of memory .* about [0-9]", ended.stderr)
    assert ended.stdout.index("signatures") < ended.stdout.index("recompute")


def test_all_steps_of_an_honest_bundle_are_accepted_as_json(honest: Files, tmp_path: Path) -> None:
    ended = harness.call("verify", packed(honest, tmp_path), "--recompute", "full", "--json")
    (found,) = json.loads(ended.stdout)
    assert found["ok"], found["reason"]
    made = found["recompute"]
    assert made["steps"] == made["of_steps"]
    assert made["same_first_weights"] == [21, 21]
    assert all(one["relative_error"] < one["limit"] for one in made["compared"])


def test_another_seed_written_over_the_same_evidence_is_refused(
    honest: Files, tmp_path: Path
) -> None:
    record = json.loads(honest["record.json"])
    forged = with_seed(honest, 9, record["timing"]["nonce"])
    found = recomputed(forged)
    assert {"probe branches", "probe head"} < {*refused_parts(found)}
    assert any(one.startswith("gradients of") for one in refused_parts(found))
    assert any("of step 0 are 1." in fault for fault in found.faults)


def test_another_nonce_written_over_the_same_evidence_is_refused(honest: Files) -> None:
    found = recomputed(with_seed(honest, 7, "ab" * 16))
    assert any(one.startswith("gradients of") for one in refused_parts(found))
    # The first weights follow from the seed alone.
    assert not any(one.startswith("weights") for one in refused_parts(found))


def test_evidence_of_another_run_under_this_record_is_refused(honest: Files, other: Files) -> None:
    record = json.loads(honest["record.json"])
    evidence_of_other = {n: c for n, c in other.items() if n.startswith("evidence/")}
    kept = {n: c for n, c in honest.items() if not n.startswith("evidence/")}
    probed = evidence.path(0, audited.PROBED)
    # The stream's length is the record's, for the forger has cut the longer of the two.
    last = json.loads(honest[probed])["last_step"]
    forged = edited(kept | evidence_of_other, probed, last_step=last)
    found = recomputed(with_seed(forged, 7, record["timing"]["nonce"]))
    assert any(one.startswith("gradients of") for one in refused_parts(found))
    assert "probe branches" in refused_parts(found)


def test_nothing_is_made_again_of_a_bundle_that_its_files_convict(
    honest: Files, tmp_path: Path
) -> None:
    record = json.loads(honest["record.json"])
    record["result"]["tokens_per_second"] *= 1.01
    forged = honest | {"record.json": json.dumps(record).encode()}
    ended = harness.call("verify", "--recompute", packed(forged, tmp_path))
    assert ended.code == 6
    assert "recompute: " not in ended.stdout + ended.stderr


def test_an_interrupt_leaves_no_file_and_no_process(honest: Files, tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    command = harness.llmb_command("verify", "--recompute", "full", packed(honest, tmp_path))
    with subprocess.Popen(
        command,
        env=harness.environment(TMPDIR=str(scratch)),
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
    ) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if b"first step done" in line:
                break
        assert [*scratch.glob("llmb-*")]
        os.kill(process.pid, signal.SIGINT)
        assert process.wait(60) == 130
    assert not [*scratch.glob("llmb-*")]


@pytest.mark.parametrize("layout", ["--dp-shard=2", "--tp=2", "--pp=2"])
def test_an_honest_bundle_of_ranks_that_share_a_model_is_accepted(
    tmp_path: Path, layout: str
) -> None:
    flags = ("--batch-size=2", "--nproc=2", layout, *harness.SAME)
    ended = harness.run(tmp_path / "out", *FLAGS, *flags)
    assert ended.code == 0, ended.stderr
    found = recomputed(files_of(ended), "full")
    assert not found.faults
    assert any(one.what.startswith("gradients of") for one in found.compared)
