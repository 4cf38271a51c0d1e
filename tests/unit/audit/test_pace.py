"""T2's flags and T3 on hand-made stamps: an odd pace, and everything that may excuse it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from llmb.audit import pace
from llmb.records.finding import Finding, Level, Status
from llmb.records.run_record import RepeatTiming, Tail
from llmb.records.system import SystemDescription
from tests.unit.builders_runtime import host_load, system, timing

QUIET = system(host_load(load_1min=0.2), host_load(load_1min=3.9))
BUSY = system(host_load(load_1min=3.0), host_load(load_1min=3.9))
EVEN = (2000,) * 6
LATE = (2000, 2010, 2000, 2000, 2010, 4000)  # what was put off is done in the last block
#: Steps of the third and of the fifth block, which begin after 22 and 42 steps.
AUDITED = (25, 42)


def run(block_ms: tuple[int, ...], **changes: Any) -> RepeatTiming:
    """Return a repeat that kept four cores busy all the time."""
    values = {"cpu_s": 3.98 * sum(block_ms) / 1000, **changes}
    return timing(block_ms, **values)


def slope(*repeats: RepeatTiming, host: SystemDescription = QUIET) -> Finding:
    return pace._slope(repeats, host)


def parity(*repeats: RepeatTiming, host: SystemDescription = QUIET) -> Finding:
    return pace._parity(repeats, host)


def flags(repeats: list[RepeatTiming], host: SystemDescription) -> tuple[Finding, Finding]:
    """Return what is said of the halves of the window, and of blocks with an audited step."""
    return pace._slope(repeats, host), pace._parity(repeats, host)


def test_a_run_at_one_pace_passes_both() -> None:
    for found in flags([run(EVEN, audited_steps=AUDITED)], QUIET):
        assert (found.id, found.level, found.status) == ("T2", Level.FLAG, Status.PASS)


def test_the_pace_of_official_runs_passes() -> None:
    # The fence blocks of the bundles under submissions/, in milliseconds, of 4 cores.
    for block_ms, cpu_s in (
        ((8976, 8446, 8873, 8911, 9083), 1759.3 / 442.9 * 44.289),
        ((21920, 21220, 21700, 21250, 21790), 429.5),
        ((19710, 20080, 19750, 19680, 19420), 389.4),
    ):
        for found in flags([timing(block_ms, cpu_s=cpu_s, audited_steps=AUDITED)], QUIET):
            assert found.status is Status.PASS


def test_a_slow_end_is_flagged() -> None:
    found = slope(run(LATE))
    assert found.status is Status.FLAG
    assert found.measured == "second half of the window +33.3% time a step"


def test_a_fast_end_is_flagged() -> None:
    assert slope(run((3000, 3010, 3000, 2000, 2010, 2000))).status is Status.FLAG


@pytest.mark.parametrize(("last", "status"), [(2500, Status.PASS), (2501, Status.FLAG)])
def test_a_half_may_be_slower_by_a_quarter(last: int, status: Status) -> None:
    assert slope(run((2000, 2000, last, last))).status is status


def test_blocks_of_unequal_length_are_compared_by_the_step() -> None:
    uneven = run((2000, 2000, 2000, 2000, 200))
    steps = (*uneven.fence_steps[:-1], uneven.fence_steps[-2] + 1)
    cut = uneven.model_copy(update={"fence_steps": steps, "timed_steps": 41})
    assert slope(cut).measured == "second half of the window +0.0% time a step"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"cpu_s": 3.8 * 14.02}, "3.80 of 4 cores"),
        ({"cpu_s": None}, "CPU time is not known"),
        ({"starved_steps": 2}, "2 steps waited"),
    ],
)
def test_a_slow_end_with_an_excuse_is_not_observed(changes: dict, words: str) -> None:
    found = slope(run(LATE, **changes))
    assert found.status is Status.NOT_OBSERVED
    assert words in found.message


def test_a_slow_end_on_a_busy_host_or_in_a_short_window_is_not_observed() -> None:
    assert "load 3.0" in slope(run(LATE), host=BUSY).message
    assert slope(run(LATE), host=BUSY).status is Status.NOT_OBSERVED
    short = slope(run(tuple(ms // 4 for ms in LATE)))
    assert short.status is Status.NOT_OBSERVED
    assert "a window of 3.5 s" in short.message


def test_blocks_that_vary_in_both_halves_are_noise() -> None:
    found = slope(run((2000, 2400, 2000, 2600, 3400, 2600)))
    assert found.status is Status.NOT_OBSERVED
    assert "vary by 20%" in found.message


def test_a_device_that_runs_ahead_of_python_leaves_the_processor_idle_without_an_excuse() -> None:
    device = {"step_clock": "enqueue", "cpu_s": 0.4 * 14.02}
    host = system(host_load(load_1min=0.2), host_load(load_1min=0.6))
    assert slope(run(LATE, **device), host=host).status is Status.FLAG
    computing = {**device, "cpu_s": 2.5 * 14.02}  # a recording device that is the processor
    assert slope(run(LATE, **computing), host=host).status is Status.NOT_OBSERVED


def test_the_middle_repeat_counts() -> None:
    even, late = run(EVEN), run(LATE)
    assert slope(even, late, even).status is Status.PASS
    assert slope(late, even, late).status is Status.FLAG
    assert slope(late, even).status is Status.PASS


def test_a_window_of_three_blocks_has_no_halves() -> None:
    assert slope(run((9000,) * 3)).status is Status.NOT_OBSERVED
    assert slope(run((9000,) * 3), run(EVEN)).status is Status.PASS
    assert slope().status is Status.NOT_OBSERVED


READING_MS = 100  # what the harness's own reading of an audited step may take


def slow_when_audited(by: float, block_ms: int = 2000) -> RepeatTiming:
    honest = [block_ms + i for i in range(6)]
    blocks = (round(ms * by) + READING_MS if i in (2, 4) else ms for i, ms in enumerate(honest))
    return run(tuple(blocks), audited_steps=AUDITED)


@pytest.mark.parametrize(
    ("by", "status"), [(1.09, Status.PASS), (1.11, Status.FLAG), (0.5, Status.PASS)]
)
def test_audited_blocks_may_be_slower_by_a_tenth(by: float, status: Status) -> None:
    assert parity(slow_when_audited(by)).status is status


def test_the_harness_reads_audited_steps_at_its_own_expense_however_short_steps_are() -> None:
    assert parity(slow_when_audited(1.0, block_ms=1000)).status is Status.PASS
    assert parity(slow_when_audited(1.0, block_ms=10)).status is Status.PASS
    twice = run((1000, 1000, 1200, 1000, 1100, 1000), audited_steps=(22, 25, 42))
    assert parity(twice).measured.startswith("blocks with an audited step +0.0%")


def test_slow_audited_blocks_on_a_busy_host_are_not_observed() -> None:
    assert parity(slow_when_audited(1.5), host=BUSY).status is Status.NOT_OBSERVED


def test_audited_blocks_that_are_not_clear_of_the_others_are_noise() -> None:
    mixed = run((2000, 2400, 3000, 2000, 2300, 2000), audited_steps=AUDITED)
    found = parity(mixed)
    assert found.status is Status.NOT_OBSERVED
    assert "vary by 20%" in found.message


@pytest.mark.parametrize(
    "audited",
    [
        (),
        (1,),  # in the warm-up
        (25, 26),
        (2, 12, 22, 32, 42, 52),
        (2, 12, 22, 32, 42),
        (62, 10**9, -5),
    ],
)
def test_too_few_blocks_of_either_kind_are_not_observed(audited: tuple[int, ...]) -> None:
    found = parity(run(EVEN, audited_steps=audited))
    assert found.status is Status.NOT_OBSERVED
    assert "fewer than 2 fence blocks" in found.message


def test_a_step_belongs_to_the_block_that_it_ends_in() -> None:
    # Step 11 is the twelfth: the fence after 12 steps ends its block. Step 12 begins the next.
    late = run((2000, 3000, 2000, 3000, 2000, 2000), audited_steps=(12, 41))
    early = late.model_copy(update={"audited_steps": (11, 42)})
    assert parity(late).measured.startswith("blocks with an audited step +45.0% time a step")
    assert parity(early).measured.startswith("blocks with an audited step -24.0% time a step")


@pytest.mark.parametrize("stamp", [0, -1])
def test_stamps_that_are_no_timeline_are_not_observed_instead_of_a_crash(stamp: int) -> None:
    even = run(EVEN, audited_steps=AUDITED)
    broken = even.model_copy(update={"fence_ns": (*even.fence_ns[:3], stamp, *even.fence_ns[4:])})
    for found in flags([broken], QUIET):
        assert found.status is Status.NOT_OBSERVED


def test_stationarity_is_a_note_with_figures_and_never_more() -> None:
    rising = run((2000, 2200, 2400, 2600, 2800))
    for host in (QUIET, BUSY):
        found = pace.judge_stationarity([run(EVEN), rising], host)
        assert (found.id, found.level, found.status) == ("T3", Level.NOTE, Status.NOTE)
        assert "repeat 0: trend +0.0% and cv 0.0% over 6 fence blocks" in found.measured
        assert "repeat 1: trend +33.3% and cv 13.2% over 5 fence blocks" in found.measured
        assert "3.98 cores busy" in found.measured
    assert "load 3.0" in found.message


def test_stationarity_says_what_was_not_measured() -> None:
    unknown = host_load(load_1min=None, steal_s=None, throttled_periods=None)
    found = pace.judge_stationarity([run((2000,), cpu_s=None)], system(unknown, unknown))
    assert found.measured.count("not measured") == 4
    assert "trend" not in found.measured


def test_a_device_that_slowed_itself_is_told() -> None:
    slowed = run(EVEN, telemetry=({"throttled": 0.0}, {"throttled": 1.0}, {}))
    assert "slowed at 1 of 3 fences" in pace.judge_stationarity([slowed], QUIET).measured


def test_what_the_host_did_is_told_in_its_own_units() -> None:
    before = host_load(load_1min=1.0, steal_s=2.0, total_cpu_s=100.0, throttled_periods=3)
    after = host_load(load_1min=2.0, steal_s=4.0, total_cpu_s=200.0, throttled_periods=8)
    told = pace.judge_stationarity([run(EVEN, starved_steps=4)], system(before, after)).measured
    assert "load 1.0 before and 2.0 after on 4 cores" in told
    assert "steal 2.0%" in told
    assert "stopped by a quota 5 times" in told
    assert "4 steps waited for their seed" in told


# -- what follows the window ----------------------------------------------------------------

#: Parameters with which a pass over memory takes 0.1 s.
PARAMETERS = 62_500_000


def tail(
    steps: int,
    steps_ms: int,
    answer_ms: int,
    host: SystemDescription = QUIET,
    reading_ns: int = 100_000_000,
) -> Finding:
    """Judge a run of 0.2 s a step, whose tail of ``steps`` took so long, and the answer."""
    timed = run((2000,) * 5)
    paused = timed.stop_ns + steps_ms * 1_000_000
    told = paused + 1_000_000
    after = Tail(steps=steps, paused_ns=paused, told_ns=told, ended_ns=told + answer_ms * 1_000_000)
    return pace._tail([timed.model_copy(update={"tail": after})], host, PARAMETERS, reading_ns)


@pytest.mark.parametrize(
    ("steps_ms", "answer_ms", "status"),
    [
        (550, 10, Status.PASS),
        # Three steps of 0.25 s, and 0.1 s for reading each.
        (1049, 10, Status.PASS),
        (1051, 10, Status.FLAG),
        # A step, a pass over memory, and 0.1 s.
        (550, 449, Status.PASS),
        (550, 451, Status.FLAG),
    ],
)
def test_the_tail_is_held_to_the_pace_of_the_window(
    steps_ms: int, answer_ms: int, status: Status
) -> None:
    assert tail(2, steps_ms, answer_ms).status is status


@pytest.mark.parametrize(
    ("steps_ms", "answer_ms", "status"),
    [
        (749, 10, Status.PASS),
        (751, 10, Status.FLAG),
        (550, 349, Status.PASS),
        (550, 351, Status.FLAG),
    ],
)
def test_where_every_step_is_compared_no_time_is_allowed_for_reading(
    steps_ms: int, answer_ms: int, status: Status
) -> None:
    assert tail(2, steps_ms, answer_ms, reading_ns=0).status is status


@pytest.mark.parametrize(
    ("trains", "rules", "every_step", "findings"),
    [(True, "3", False, 2), (True, "3", True, 1), (True, "4", False, 1), (False, "4", False, 2)],
)
def test_calls_are_compared_with_others_and_steps_by_older_rules_where_not_every_step_is(
    trains: bool, rules: str, every_step: bool, findings: int
) -> None:
    facts = SimpleNamespace(
        repeats=[run(EVEN)], system=QUIET, rules_version=rules, records_steps=False
    )
    one = SimpleNamespace(every_step=every_step)
    bench: Any = SimpleNamespace(facts=facts, trains=trains, of=lambda n: one)
    assert sum(found.id == "T2" for found in pace.judge(bench)) == findings


def test_a_slow_tail_on_a_busy_host_is_not_observed() -> None:
    busy = system(host_load(load_1min=9.0))
    assert tail(2, 5000, 10, busy).status is Status.NOT_OBSERVED


@pytest.mark.parametrize(
    ("records_steps", "rules", "trains", "judged"),
    [(False, "3", True, 1), (True, "3", True, 0), (True, "4", True, 1), (True, "4", False, 0)],
)
def test_the_tail_of_a_device_that_compiles_its_last_step_or_call_is_not_judged(
    records_steps: bool, rules: str, trains: bool, judged: int
) -> None:
    timed = run(EVEN).model_copy(
        update={"tail": Tail(steps=2, paused_ns=0, told_ns=0, ended_ns=10**13)}
    )
    workload = SimpleNamespace(parameters=PARAMETERS)
    facts = SimpleNamespace(
        repeats=[timed],
        system=QUIET,
        workload=workload,
        records_steps=records_steps,
        rules_version=rules,
    )
    one = SimpleNamespace(every_step=True)
    bench: Any = SimpleNamespace(facts=facts, trains=trains, of=lambda n: one)
    flags = [f for f in pace.judge(bench) if f.id == "T2" and f.status is Status.FLAG]
    assert len(flags) == judged
