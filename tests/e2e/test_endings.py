"""Runs that end early, each by a real fault: what is kept, said and left (docs/architecture.md)."""

from __future__ import annotations

import json
import re
import shutil
import signal
import time
from datetime import datetime, timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests import needs
from tests.e2e import harness
from tests.e2e.harness import Ended, Running

FAILED, REFUSED, USAGE, INTERRUPTED = 4, 6, 2, 130
TINY = (*harness.TINY_RUN, "--plugin=cpu", "--device=cpu", "--precision=FP32")
#: Too long for a test: it has to be interrupted.
LONG = ("--timed-steps=100000",)
#: The time at the begin of a line of log.txt.
LOG_TIME = r"^(\d{4}-\d{2}-\d{2}T[\d:]{8}\+00:00) "
BAD = ("flag", "fail")
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
    assert {found[rule] for rule in ("W1", "E1", "E2", "E3", "P1", "O1", "L1", "K1")} == {"pass"}
    assert audit["verdict"] == "CONSISTENT"
    after = done.record
    assert after["result"]["fraction_of_ceiling"] > 0
    assert not any("ceiling was not measured" in said for said in after["warnings"])
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


#: The limits on a silent process are 10 minutes and an hour: a test makes both short. Only the
#: supervisor's own process executes this.
IMPATIENT = """
from llmb.supervision import auditing
from llmb.supervision.stream import Patience
Patience._LEAST_S = auditing._LIMIT_S = 8.0
auditing.host_patience_s = lambda config: 0.0
"""


def strike_newest_process(started: Running, number: signal.Signals) -> None:
    """Send a signal to the process of the run that was started last; SIGSTOP lets it hang."""
    started.family = psutil.Process(started.process.pid).children(recursive=True)
    max(started.family, key=lambda child: child.create_time()).send_signal(number)


@pytest.mark.full
def test_a_worker_that_hangs_in_the_window_is_ended_after_the_limit(tmp_path: Path) -> None:
    with harness.running(tmp_path / "out", *TINY, *LONG, first=IMPATIENT) as started:
        started.wait_for("first step done")
        strike_newest_process(started, signal.SIGSTOP)
        code = started.wait()
        assert started.survivors() == []
    done = Ended(code, "", started.stderr, started.output)
    assert code == FAILED
    assert "the worker has been silent for" in done.said[-1]
    assert "the device or its plugin hangs" in done.log
    assert not done.finished
    assert not list(done.directory.glob(".scratch*"))


@pytest.mark.full
@pytest.mark.parametrize(
    ("phase", "number"),
    [
        ("computing an honest run", signal.SIGSTOP),
        ("computing the reference", signal.SIGKILL),
    ],
)
def test_a_process_of_the_audit_that_hangs_or_dies_costs_its_rules_and_not_the_timing(
    tmp_path: Path, phase: str, number: signal.Signals
) -> None:
    with harness.running(tmp_path / "out", *TINY, first=IMPATIENT) as started:
        started.wait_for(phase)
        strike_newest_process(started, number)
        code = started.wait()
        assert started.survivors() == []
    done = Ended(code, "", started.stderr, started.output)
    assert code == 0, done.stderr
    assert done.record["audit"]["verdict"] == "UNVERIFIED"
    assert done.record["timing"]["repeats"]
    assert not list(done.directory.glob(".scratch*"))


@pytest.mark.full
def test_a_run_directory_that_is_removed_ends_the_run_with_one_line(tmp_path: Path) -> None:
    with harness.running(tmp_path / "out", *TINY) as started:
        started.wait_for("first step done")
        (directory,) = started.output.iterdir()
        shutil.rmtree(directory)
        code = started.wait()
    assert code == FAILED
    last = [line for line in started.stderr.splitlines() if line.strip()][-1]
    assert last.startswith("llmb: ")
    assert directory.name in last
    assert "Traceback" not in started.stderr


@pytest.mark.full
def test_a_clock_that_is_set_in_the_window_changes_nothing(tmp_path: Path) -> None:
    needs.package("libfaketime")
    found = find_spec("libfaketime")
    assert found is not None
    library = Path(str(found.origin)).parent / "vendor/libfaketime/src/libfaketime.so.1"
    offset = tmp_path / "offset"
    offset.write_text("+0")
    faked = {
        "LD_PRELOAD": str(library),
        "FAKETIME_TIMESTAMP_FILE": str(offset),
        "FAKETIME_NO_CACHE": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
    }
    began_ns = time.monotonic_ns()
    with harness.running(tmp_path / "out", *TINY, "--timed-steps=100", **faked) as started:
        started.wait_for("first step done")
        offset.write_text("+30d")
        code = started.wait()
        took_ns = time.monotonic_ns() - began_ns
    done = Ended(code, "", started.stderr, started.output)
    assert code == 0, done.stderr
    times = [datetime.fromisoformat(found) for found in re.findall(LOG_TIME, done.log, re.M)]
    assert times[-1] - times[0] > timedelta(days=29), "the fault took effect"
    (repeat,) = done.record["timing"]["repeats"]
    assert repeat["stop_ns"] - repeat["start_ns"] < took_ns
    unlike = [each for each in done.record["audit"]["findings"] if each["status"] in BAD]
    assert [each["id"] for each in unlike] == ["N2"], unlike
    assert "library libfaketime.so.1 of libfaketime put before all others" in unlike[0]["message"]


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
