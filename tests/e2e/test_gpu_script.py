"""``benchmarks/gpu/run.sh`` and ``many.sh`` on the CPU: killed, INVALID, failed, two ranks."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
import zipfile
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.cheats import runner
from tests.e2e import harness

GPU = Path(__file__).resolve().parents[2] / "benchmarks" / "gpu"
ON_CPU = ("--plugin", "cpu", "--device", "cpu", "--preset", "debug", "--limit", "3000")


class Call:
    """One call of a script; what it says is in a file, as a kill leaves it."""

    def __init__(self, folder: Path, *arguments: str, script: str = "run.sh", **env: str) -> None:
        self.output, self._said = folder / "out", folder / "said.txt"
        folder.mkdir(parents=True, exist_ok=True)
        fixed = {"PYTHON": sys.executable, "TMPDIR": str(folder)}
        with self._said.open("wb") as said:
            self.process = psutil.Popen(
                [GPU / script, self.output, *arguments],
                env={**harness.environment(), **fixed, **env},
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=subprocess.STDOUT,
            )

    @property
    def said(self) -> list[str]:
        return self._said.read_text().splitlines()

    @property
    def finished(self) -> list[str]:
        """The lines of the stages that the script has announced as finished."""
        return [line.partition("] ")[2] for line in self.said if line.startswith("[")]

    def kill(self) -> None:
        """End the script and everything it started, as a machine does that is taken back."""
        family = [self.process, *self.process.children(recursive=True)]
        for process in family:
            if process.is_running():
                process.kill()
        psutil.wait_procs(family, timeout=20)

    @property
    def summary(self) -> dict[str, dict[str, Any]]:
        """The rows of summary.json, by stage."""
        rows = json.loads((self.output / "summary.json").read_text())["stages"]
        return {row["stage"]: row for row in rows}

    @property
    def zipped(self) -> set[str]:
        names: set[str] = set()
        for file in self.output.glob("*.zip"):
            with zipfile.ZipFile(file) as archive:
                assert archive.testzip() is None
                names |= set(archive.namelist())
        return names

    def holds_what_it_announced(self) -> int:
        """Check that every announced stage is in summary and zip, and return how many there are."""
        announced = self.finished
        if announced:
            text = (self.output / "summary.txt").read_text()
            assert [line for line in announced if line not in text] == []
        numbers = {name[:2] for name in self.zipped}
        assert {line[:2] for line in announced if "skipped" not in line} <= numbers
        if self.output.exists():
            assert len([*self.output.iterdir()]) <= 8
        return len(announced)


def test_killed_in_its_second_stage_the_script_leaves_the_first_in_the_zip_and_both_summaries(
    tmp_path: Path,
) -> None:
    call = Call(tmp_path, *ON_CPU, "--only", "plain loop,eager 20 steps")
    while call.process.poll() is None and not list(tmp_path.rglob("06-*/err.txt")):
        time.sleep(0.1)
    call.kill()
    assert call.holds_what_it_announced() == 1
    assert call.zipped == {"05-plain-loop.out.txt", "05-plain-loop.log.txt"}
    assert call.summary["plain loop"]["output"]["tokens_per_second"] > 0
    assert call.summary["eager 20 steps"]["outcome"] == "running"
    assert {file.name for file in call.output.iterdir()} == {
        *("results.zip", "summary.json", "summary.txt")
    }


def test_an_invalid_run_leaves_record_audit_log_and_figure_and_a_failed_one_its_last_lines(
    tmp_path: Path,
) -> None:
    plugin = runner.install(tmp_path / "plugins", "skip_layer", native=False)
    flags = ("--plugin", runner.NAME, "--device", "cpu", "--preset", "debug", "--limit", "3000")
    paths = os.pathsep.join([str(plugin), harness.environment()["PYTHONPATH"]])
    call = Call(tmp_path, *flags, "--only", "debug eager,FP8", PYTHONPATH=paths)
    assert call.process.wait() == 0
    row = call.summary["debug eager"]
    assert (row["outcome"], row["exit_code"]) == ("INVALID", 5)
    assert (row["runs"][0]["verdict"], row["runs"][0]["tokens_per_second"] > 0) == ("INVALID", True)
    parts = ("record.json", "audit.json", "log.txt", "out.txt")
    assert {f"02-debug-eager.{part}" for part in parts} <= call.zipped
    assert (
        "tokens/s at batch size 2 [debug, INVALID (E1" in (call.output / "summary.txt").read_text()
    )
    assert call.summary["FP8"]["exit_code"] == 3
    assert "FP8" in call.summary["FP8"]["tail"][-1]
    assert "07-fp8.log.txt" in call.zipped


@pytest.mark.long
def test_killed_at_twenty_random_seconds_every_finished_stage_is_in_zip_and_summary(
    tmp_path: Path, record_property: Any
) -> None:
    only = ("--only", "plain loop,eager 20 steps,FP8,TF32")
    whole = Call(tmp_path / "whole", *ON_CPU, *only)
    begun = time.monotonic()
    assert whole.process.wait() == 0
    seconds = time.monotonic() - begun
    assert whole.holds_what_it_announced() == 4
    figures = []
    for index in range(20):
        call = Call(tmp_path / str(index), *ON_CPU, *only)
        after = random.uniform(0, seconds)
        try:
            call.process.wait(timeout=after)
        except psutil.TimeoutExpired:
            call.kill()
        figures.append((round(after), call.holds_what_it_announced()))
        print(*figures[-1], "of", round(seconds), flush=True)
    record_property("seconds and stages", figures)
    assert len({stages for _, stages in figures}) > 2, "killed in different stages"


@pytest.mark.long
def test_two_ranks_are_examined_audited_and_measured_on_the_cpu(tmp_path: Path) -> None:
    call = Call(tmp_path, *ON_CPU, "--devices", "2", script="many.sh")
    assert call.process.wait() == 0
    rows = call.summary
    debug = [rows[name]["runs"][0] for name in ("debug DDP", "debug FSDP")]
    assert [run["verdict"] for run in debug] == ["CONSISTENT"] * 2
    assert [run["parallelism"]["dp_shard"] for run in debug] == [1, 2]
    assert len(rows["scaling"]["runs"]) == 2
    assert {row["outcome"] for name, row in rows.items() if name != "node"} == {"done"}
