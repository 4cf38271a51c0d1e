"""The scripts under benchmarks/: how they take turns, and what they make of what was measured."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from llmb.config import BF16
from llmb.records.bundle import from_files, read_bundle
from llmb.report.board import board
from llmb.submission.clashes import Placed, clashes
from llmb.submission.verify import verify_bundle
from tests.unit.builders_audit import Audited, examine, small_vocabulary, worked

__all__ = ["small_vocabulary", "worked"]  # fixtures

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
    ranked = board(made.believing([tmp_path]))
    assert ranked.refused == ()
    assert len(ranked.rows) == 40
    assert 0 < len(ranked.apart) < 20, "some are INVALID"
    assert len(ranked.groups) > 5


def test_the_made_up_bundles_that_are_verified_pass_and_share_nothing():
    made = import_module("verified")
    if not made.MODEL.is_dir():
        pytest.skip("no submissions beside these tests")
    files = dict(read_bundle(made.MODEL).files)
    found = [verify_bundle(from_files(made.copy_of(files, n))) for n in (0, 1)]
    assert [one.ok for one in found] == [True, True]
    members = [Placed(str(n), Path(str(n)), f.bundle_id, f.content) for n, f in enumerate(found)]
    assert len(found[0].content.evidence) == 5
    assert clashes(members, lambda place: None) == {}


def test_drift_is_the_relative_distance_of_the_losses_and_every_way_has_as_many_ranks():
    drift = import_module("drift")
    assert {mesh.world_size for mesh in drift.meshes(4).values()} == {4}
    line = drift._row(drift.FP32, "DDP", "2 to 1", [2.0, 1.5, 1.0], [2.0, 1.0, 1.0])
    assert line == "| FP32 | DDP | 2 to 1 | 0.0e+00 | 5.0e-01 | 0.0e+00 |"


def test_what_a_gpu_needs_travels_in_under_two_megabytes_and_works_where_it_is_unpacked(
    tmp_path: Path,
) -> None:
    archive, site = tmp_path / "gpu.tar.gz", tmp_path / "site"
    subprocess.run([SCRIPTS / "gpu/pack.sh", archive], check=True, capture_output=True)
    assert archive.stat().st_size < 2 * 10**6
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


def test_the_first_honest_runs_stay_the_same_where_more_are_drawn_and_tiny_ones_come_first():
    honest = import_module("honest")
    every = honest.plan(230, draw=1)
    assert {*honest.plan(40, draw=1)} < {*every}
    assert len({case.seed for case in every}) == 230
    sizes = [case.size for case in every]
    assert sizes == sorted(sizes, key=[honest.TINY, honest.DEBUG].index)


def test_honest_runs_are_of_every_kind_and_cheats_of_every_rule_with_a_number():
    honest = import_module("honest")
    every = honest.plan(230, draw=1)
    twins = {twin.plugin for twin in honest.TWINS if twin.needs is None}
    assert {case.subject for case in every} >= twins
    assert {case.mode for case in every} == {"train", "forward", "generate"}
    assert {case.ranks for case in every} == {*honest._RANKS}
    assert {case.loaded for case in every} == {True, False}
    assert not any(case.caught_by for case in every)
    assert {rule for case in honest.cheats() for rule in case.caught_by} >= {*honest.NUMERIC}


def _line(number: float, status: str = "pass", **case: Any) -> dict[str, Any]:
    made = import_module("honest").Case("cpu", "BF16", seed=1, loaded=False, **case)
    finding = {"id": "E1", "status": status, "level": "block", "message": "why"}
    verdicts = {"fail": "INVALID", "not_observed": "UNVERIFIED"}
    margin = {"rule": "E1", "what": "all together", "measured": number, "limit": 2.0}
    return {
        "case": asdict(made),
        "verdict": verdicts.get(status, "CONSISTENT"),
        "findings": [finding] if status != "pass" else [],
        "numbers": [margin],
        "cpu_s": 10.0,
        "wall_s": 20.0,
    }


def test_a_run_that_is_expected_to_be_unobserved_is_not_accused_and_another_is() -> None:
    honest = import_module("honest")
    assert honest.accusations(_line(1.0)) == []
    assert honest.accusations(_line(3.0, "fail")) == ["E1 fail: why"]
    assert honest.accusations(_line(1.0, "not_observed")) == ["E1 not_observed: why"]
    assert honest.accusations(_line(1.0, "not_observed", unobserved=("E1",))) == []
    assert honest.accusations({"case": {}, "code": 4, "said": "no"}) == ["no record, code 4: no"]


def test_the_summary_counts_accused_runs_and_shows_where_a_rule_separates() -> None:
    honest = import_module("honest")
    runs = [_line(1.0), _line(1.5, ranks="2, DDP"), _line(3.0, "fail")]
    cheats = [_line(n, "fail", caught_by=("E1",)) for n in (1.9, 2.4, 5.0)]
    told = [*honest.summary([*runs, *cheats])]
    assert told[0] == "3 honest runs: 2 CONSISTENT, 1 INVALID; accused: 1"
    assert "cpu_s: mean 10.0, median 10.0, most 10.0" in told
    assert "| ranks | 1 2, 2, DDP 1 |" in told
    assert "| E1 | all together | 3 | 2 | 1.50 | cpu BF16 llama-1.4b | 3 |" in told
    # 1.9 is within the limit of 2: something else than a number gave that cheat away.
    assert "| E1 | 1.50 | 3 | 1.20 | cpu, BF16 | 2 |" in told
    assert told[-1].endswith("no number of the rule: E1 cpu, BF16")


def test_a_run_that_the_file_holds_is_not_made_again(tmp_path: Path) -> None:
    honest, output = import_module("honest"), tmp_path / "runs.jsonl"
    cases = honest.plan(3, draw=1)
    output.write_text(json.dumps({"case": asdict(cases[0])}) + "\n")
    assert honest.make(cases, output, jobs=1, minutes=0) == 2
    assert len(honest.lines(output)) == 1, "and none is started when the time is over"


def test_numbers_are_read_from_the_words_of_findings() -> None:
    margins = import_module("margins")

    def of(rule: str, measured: str, honest: str, limit: str) -> list[tuple[float, float]]:
        words = {"id": rule, "measured": measured, "honest": honest, "limit": limit}
        return [(one.measured, one.limit) for one in margins.of_finding(words)]

    two = of("E1", "0.006 of all, worst 8e-3", "0.004 of all, worst 0.005", "1.5 and 2.0 times")
    assert two == [(0.006, pytest.approx(0.006)), (0.008, 0.01)]
    assert of("T1", "-0.5 ms in 4.000 s", "0 ms", "0.1 % + 5 ms") == [(0.5, 9.0)]
    words = "532 of 26600 elements differ from torch's AdamW (2 by more than a last place), 2 steps"
    assert of("O2", words, "0 elements", "") == [(530 / 26600, 0.02), (2 / 26600, 0.0)]
    assert of("E3", "branches 2.00 bits, head 4.00 bits", "", "1.0 bits") == [(0.25, 0.5)]
    assert of("T2", "the answer to the last step: 0.50 s of 2.00 s", "", "") == [(0.5, 2.0)]
    assert of("T2", "second half of the window -12.5% time a step", "", "25%") == [(12.5, 25.0)]
    assert margins.Margin("O2", "", 0.1, 0.0).ratio > 1 > margins.Margin("O2", "", 0.0, 0.0).ratio


@pytest.mark.usefixtures("small_vocabulary")
def test_numbers_of_e2_and_l1_are_those_that_the_judges_compared(
    worked: Callable[..., Audited], tmp_path: Path
) -> None:
    margins = import_module("margins")
    run = examine(worked(precision=BF16).copied(tmp_path))
    with margins._noted() as seen:
        findings = run.judge().audit.findings
    numbers = {(m.rule, m.what): m for read, judged in seen for m in read(judged)}
    (measured,) = [f.measured for f in findings if f.id == "L1"]
    assert f"{numbers['L1', 'all gradients together'].measured:.3g} of all" in measured
    own = numbers["L1", "honest run: all gradients together"].measured
    assert f"own {own:.3g} of all" in measured
    assert 0 < numbers["L1", "honest run: worst parameter"].ratio < 1
    assert numbers["E2", "bits that the worst part lacks"].limit == 0.75


def test_two_runs_at_a_rate_agree_at_first_and_the_table_says_for_how_long() -> None:
    drift = import_module("drift")
    every = drift.recipes()
    assert sum(map(len, every.values())) == len({name for each in every.values() for name in each})
    recipe = next(iter(every))
    cells = drift.agreement(recipe, ["llama-1.4b"], drift.FP32, 2).split(" | ")
    assert cells[0] == "| AdamW 1e-05 to 0.0003"
    assert cells[4] == "all 2"
    assert 0 < float(cells[5]) < 1
