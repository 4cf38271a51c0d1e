"""The scripts under benchmarks/: how they take turns, and what they make of what was measured."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

from llmb.report.board import board
from llmb.report.bundles import gather

SCRIPTS = Path(__file__).resolve().parents[2] / "benchmarks"
SIDE = """
import sys
sys.path.insert(0, sys.argv[1])
from gate import Gate
gate = Gate(warmup_steps=2, tokens_per_step=10)
gate.about.parameters = 7
print("what a library prints does not disturb")
while True:
    gate.passed()
"""


@pytest.fixture(autouse=True)
def scripts(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    before = set(sys.modules)
    for folder in (SCRIPTS, SCRIPTS / "peers"):
        monkeypatch.syspath_prepend(folder)
    yield
    for name in set(sys.modules) - before:
        if str(SCRIPTS) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


def test_a_ratio_is_made_within_a_round_so_that_a_slow_round_cancels():
    paired = import_module("paired")
    found = paired.ratios([20.0, 2.0, 22.0], [10.0, 1.0, 10.0])
    assert (found.low, found.median, found.high) == (2.0, 2.0, 2.2)
    assert found.show(1) == "2.0 (2.0 to 2.2)"


def test_sides_with_unequal_rounds_have_no_ratio():
    with pytest.raises(ValueError, match="zip"):
        import_module("paired").ratios([1.0, 2.0], [1.0])


def test_every_side_has_one_turn_a_round_and_each_round_another_goes_first():
    order: list[str] = []
    sides = {name: lambda name=name: order.append(name) or len(order) for name in "abc"}
    measured = import_module("paired").take_turns(3, sides)
    assert order == [*"abc", *"bca", *"cab"]
    assert measured == {"a": [1, 6, 8], "b": [2, 4, 9], "c": [3, 5, 7]}


def test_a_turn_is_the_steps_that_were_ordered_and_the_process_ends_with_its_gate(tmp_path: Path):
    gate = import_module("gate")
    log = tmp_path / "log"
    side = gate.Side("toy", [sys.executable, "-c", SIDE, str(SCRIPTS / "peers")], {}, log)
    about = side.start()
    assert about.parameters == 7
    about.step_seconds = 1.0
    turn = side.turn(seconds=3.0)
    assert (len(turn.steps), turn.tokens) == (3, 30)
    assert turn.rate == pytest.approx(30 / sum(turn.steps))
    side.end()
    assert log.read_text() == "what a library prints does not disturb\n"


def test_a_side_that_cannot_start_says_why(tmp_path: Path):
    gate = import_module("gate")
    command = [sys.executable, "-c", "raise SystemExit('no such package')"]
    with pytest.raises(gate.SideFailedError, match="toy ended with code 1: no such package"):
        gate.Side("toy", command, {}, tmp_path / "log").start()


def test_recompilations_are_those_between_start_and_stop():
    timing = {
        "warmup_steps": 2,
        "timed_steps": 20,
        "fence_steps": [1, 2, 12, 22, 24],
        "telemetry": [{"compilations": n} for n in (1.0, 3.0, 3.0, 5.0, 9.0)],
    }
    executors = import_module("executors")
    assert executors.compilations(timing) == (3, 2)
    assert executors.compilations({**timing, "telemetry": []}) is None


def test_an_executor_is_held_against_eager_and_against_nothing_where_eager_is_missing():
    executors = import_module("executors")

    def runs(executor: str, *rates: float) -> list[object]:
        of = executors.Measured
        return [of("w", "train", executor, rate, 2 * rate, None, None, 1.0) for rate in rates]

    both = executors.render({"eager": runs("eager", 1, 4), "inductor": runs("inductor", 2, 2)}, {})
    assert "1.250 (0.500 to 2.000)" in both[3]
    alone = executors.render({"inductor": runs("inductor", 2)}, {"eager": "code 3: why"})
    assert "| inductor | 2.0 (2.0 to 2.0) |  |" in alone[2]
    assert alone[-1] == "Not measured: eager: code 3: why"


def test_the_made_up_bundles_of_the_leaderboard_are_read_and_ranked(tmp_path):
    made = import_module("leaderboard")
    if not made.originals(whole=False):
        pytest.skip("no submissions beside these tests")
    made.make(tmp_path, 40, whole=False)
    ranked = board(gather([tmp_path]))
    assert ranked.refused == ()
    assert len(ranked.rows) == 40
    assert 0 < len(ranked.apart) < 20, "some are INVALID"
    assert len(ranked.groups) > 5


def test_drift_is_the_relative_distance_of_the_losses_and_every_way_has_as_many_ranks():
    drift = import_module("drift")
    assert {mesh.world_size for mesh in drift.meshes(4).values()} == {4}
    line = drift._row(drift.FP32, "DDP", "2 to 1", [2.0, 1.5, 1.0], [2.0, 1.0, 1.0])
    assert line == "| FP32 | DDP | 2 to 1 | 0.0e+00 | 5.0e-01 | 0.0e+00 |"


def test_what_a_gpu_needs_travels_in_under_a_megabyte_and_works_where_it_is_unpacked(
    tmp_path: Path,
) -> None:
    archive, site = tmp_path / "gpu.tar.gz", tmp_path / "site"
    subprocess.run([SCRIPTS / "gpu/pack.sh", archive], check=True, capture_output=True)
    assert archive.stat().st_size < 10**6
    subprocess.run(["tar", "xzf", archive], check=True, cwd=tmp_path)
    gpu = tmp_path / "llmb-gpu/benchmarks/gpu"
    site.mkdir()
    link = [sys.executable, gpu / "link.py", site, "llmb", "plugins/llmb-cuda"]
    subprocess.run(link, check=True, capture_output=True)
    script = "import llmb_cuda, llmb; print(llmb.__file__, llmb_cuda.__file__)"
    env = {**os.environ, "PYTHONPATH": str(site)}
    done = subprocess.run(
        [sys.executable, "-c", script],
        check=True,
        capture_output=True,
        text=True,
        env=env,
        cwd=tmp_path,
    )
    assert [str(site) in path for path in done.stdout.split()] == [True, True]
