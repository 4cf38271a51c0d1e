"""Runs that end early, each by a real fault: what is kept, said and left (docs/architecture.md)."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.e2e import harness
from tests.e2e.harness import Ended, Running

FAILED, REFUSED, USAGE, INTERRUPTED = 4, 6, 2, 130
TINY = (*harness.TINY_RUN, "--plugin=cpu", "--device=cpu", "--precision=FP32")
#: Too long for a test: it has to be interrupted.
LONG = ("--timed-steps=100000",)
SIGNALS = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1]


def one_line(started: Running, number: int) -> Ended:
    """Signal a run, and hold it to one line, exit code 130, no process, and no scratch."""
    done = started.kill(number)
    assert started.family, "there was a child to end"
    assert started.survivors() == []
    assert done.code == INTERRUPTED, done.stderr
    last = [line for line in done.said if "interrupted" in line]
    assert last == done.said[-1:]
    assert last[0].startswith(f"llmb: interrupted by {signal.Signals(number).name} ")
    assert str(done.directory) in last[0]
    assert "Traceback" not in done.stderr
    assert not list(done.directory.glob(".scratch*"))
    assert not list(done.directory.glob("evidence/**/*.part"))
    return done


def interruption(done: Ended) -> dict[str, Any]:
    found = done.record["interruption"]
    assert isinstance(found, dict)
    return found


@pytest.mark.quick
@pytest.mark.parametrize("number", SIGNALS, ids=lambda s: s.name)
def test_a_signal_in_the_window_leaves_a_log_that_says_how_far_it_came(
    tmp_path: Path, number: signal.Signals
) -> None:
    with harness.running(tmp_path / "out", *TINY, *LONG) as started:
        started.wait_for("first step done")
        done = one_line(started, number)
    assert not done.finished
    assert "of 100000 timed steps" in done.said[-1] or "before the timed window" in done.said[-1]
    assert f"the run did not finish: interrupted by {number.name}" in done.log


@pytest.mark.quick
def test_an_audit_that_is_interrupted_keeps_the_timing_and_is_finished_afterwards(
    tmp_path: Path,
) -> None:
    with harness.running(tmp_path / "out", *TINY) as started:
        started.wait_for("computing an honest run")
        done = one_line(started, signal.SIGTERM)
    record, run = done.record, done.directory
    assert record["audit"]["verdict"] == "UNVERIFIED"
    assert record["class"] == "debug"
    assert record["result"]["tokens_per_second"] > 0
    assert interruption(done)["phase"] == "in the honest run"
    assert done.said[-1].endswith(f"to finish its audit: llmb audit --resume {run}")

    finished = harness.call("audit", "--resume", run, "--json")
    assert finished.code == 0, finished.stderr
    audit = json.loads(finished.stdout)
    found = {f["id"]: f["status"] for f in audit["findings"] if f["level"] == "block"}
    assert {found[rule] for rule in ("W1", "E1", "E2", "E3", "P1", "O1", "L1")} == {"pass"}
    assert found["K1"] == "not_observed"
    assert audit["verdict"] == "UNVERIFIED"
    after = done.record
    assert after["timing"] == record["timing"]
    assert after["interruption"]["resumed_utc"] is not None
    assert "its audit was finished afterwards" in after["waivers"][-1]
    assert not (run / "unfinished").exists()

    again = harness.call("audit", "--resume", run)
    assert (again.code, len(again.said)) == (USAGE, 1)
    assert "this audit was finished at" in again.said[0]


@pytest.mark.full
def test_evidence_that_was_altered_meanwhile_is_not_judged(tmp_path: Path) -> None:
    with harness.running(tmp_path / "out", *TINY) as started:
        started.wait_for("computing an honest run")
        done = one_line(started, signal.SIGINT)
    file = done.directory / "evidence/repeat-0/gradients.safetensors"
    file.write_bytes(file.read_bytes()[:-1] + b"\1")
    refused = harness.call("audit", "--resume", done.directory)
    assert (refused.code, len(refused.said)) == (REFUSED, 1)
    assert "gradients.safetensors: this evidence is not what the record says" in refused.said[0]
    packed = harness.call(
        "package-submission", done.directory, "--submitter", "acme", "--system", "box"
    )
    assert packed.code == REFUSED
    assert "it is a debug run" in packed.said[0]


@pytest.mark.full
def test_repeats_that_were_finished_are_kept(tmp_path: Path) -> None:
    with harness.running(tmp_path / "out", *TINY, "--repeats=3") as started:
        started.wait_for("timing 2 of 3: post-processing")
        done = one_line(started, signal.SIGTERM)
    record = done.record
    assert len(record["timing"]["repeats"]) == record["config"]["repeats"] == 1
    assert interruption(done)["repeat"] == 1
    assert interruption(done)["repeats"] == 3
    assert "ended early (repeat 2 of 3, " in record["waivers"][-1]
    refused = harness.call("audit", "--resume", done.directory)
    assert refused.code == USAGE
    assert "are finished" in refused.said[0]


@pytest.mark.quick
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP], ids=lambda s: s.name)
def test_a_signal_to_the_starter_of_ranks_is_one_line_of_rank_0(
    tmp_path: Path, number: signal.Signals
) -> None:
    with harness.running(tmp_path / "out", *TINY, *LONG, "--nproc=2") as started:
        started.wait_for("first step done")
        done = one_line(started, number)
    assert not done.finished


@pytest.mark.full
def test_a_signal_to_every_process_of_ranks_is_one_line_too(tmp_path: Path) -> None:
    # As a scheduler does at its time limit: the workers die of it as well.
    with harness.running(tmp_path / "out", *TINY, *LONG, "--nproc=2") as started:
        started.wait_for("first step done")
        family = psutil.Process(started.process.pid).children(recursive=True)
        for process in family:
            process.send_signal(signal.SIGTERM)
        done = one_line(started, signal.SIGTERM)
    assert not done.finished


@pytest.mark.full
def test_ranks_that_are_audited_keep_their_timing(tmp_path: Path) -> None:
    with harness.running(tmp_path / "out", *TINY, "--nproc=2") as started:
        started.wait_for("computing an honest run")
        done = one_line(started, signal.SIGTERM)
    assert interruption(done)["phase"] == "in the honest run"
    assert len(done.record["topology"]["ranks"]) == 2
    finished = harness.call("audit", "--resume", done.directory)
    assert finished.code == 0, finished.stderr


@pytest.mark.full
def test_a_worker_that_is_killed_is_a_failed_run_that_names_the_signal(tmp_path: Path) -> None:
    with harness.running(tmp_path / "out", *TINY, *LONG) as started:
        started.wait_for("first step done")
        children = psutil.Process(started.process.pid).children(recursive=True)
        worker = max(children, key=lambda child: child.create_time())
        worker.send_signal(signal.SIGTERM)
        code = started.wait()
    done = Ended(code, "", started.stderr, started.output)
    assert code == FAILED
    assert "was killed by SIGTERM" in done.said[-1]
    assert not done.finished
