"""N2 in the course of a stream: acts, threads and processes that are flagged, or are not."""

from __future__ import annotations

from typing import Any

import pytest

from llmb.audit import companions
from llmb.audit.surroundings import finding
from llmb.records.evidence import Act, Presence, SurroundingsEvidence, ThreadSeen
from llmb.records.finding import Status
from llmb.records.run_record import COMPILATIONS_COUNTED, DeclaredHelper, RepeatTiming
from tests.unit.builders_runtime import timing

#: START after 2 steps, a fence every 10 steps, STOP after 52.
TIMING = timing()
SENSOR = DeclaredHelper(name="sensor*", reason="adds up power", cpu_share=0.01)


def act(event: str = "sys.setprofile", **changes: Any) -> Act:
    values = {"place": "acme.py:3 in f", "origin": "plugin", "count": 1, "blocks": (12,)}
    return Act(event=event, **{**values, **changes})


def thread(name: str = "sensor 1", **changes: Any) -> ThreadSeen:
    values = {"origin": "plugin", "first": 2, "last": 52, "cpu_s": 0.01, "wall_s": 5.0}
    return ThreadSeen(name=name, **{**values, **changes})


def seen(**changes: Any) -> SurroundingsEvidence:
    values = {
        "found": (),
        "preloaded": (),
        "frozen_objects": (0, 0),
        "collecting": (True, True),
        "native_threads": None,
    }
    return SurroundingsEvidence(**{**values, **changes})


def faults(*helpers: DeclaredHelper, times: RepeatTiming = TIMING, **evidence: Any) -> list[str]:
    return list(companions.faults(seen(**evidence), times, helpers))


@pytest.mark.parametrize(
    ("blocks", "is_flagged"),
    [((-1,), False), ((-1, 0), False), ((2,), True), ((-1, 42), True), ((52,), True)],
)
def test_an_act_is_flagged_from_start_on(blocks: tuple[int, ...], is_flagged: bool) -> None:
    assert bool(faults(acts=(act(blocks=blocks),))) == is_flagged


@pytest.mark.parametrize("blocks", [(-1,), (12,)])
def test_an_audit_hook_is_flagged_whenever_it_came(blocks: tuple[int, ...]) -> None:
    (fault,) = faults(acts=(act("sys.addaudithook", blocks=blocks),))
    assert fault == "sys.addaudithook by the plugin at acme.py:3 in f, which lasts"


@pytest.mark.parametrize(
    ("event", "origin", "is_flagged"),
    [
        ("sys._getframe", "plugin", True),
        ("gc.get_objects", "unknown", True),
        ("read of tb_frame", "plugin", True),
        ("sys._getframe", "other", False),
        ("ctypes.dlopen", "plugin", False),
    ],
)
def test_where_steps_are_judged_a_plugin_looks_at_no_frames_and_objects_before_start_either(
    event: str, origin: str, is_flagged: bool
) -> None:
    evidence = seen(acts=(act(event, origin=origin, blocks=(-1,)),))
    assert not list(companions.faults(evidence, TIMING, ()))
    found = list(companions.faults(evidence, TIMING, (), ever_looked=True))
    assert bool(found) == is_flagged
    assert all("may be kept until the timed steps" in fault for fault in found)


def test_a_fault_names_event_place_and_count() -> None:
    (fault,) = faults(acts=(act(count=50),))
    assert fault == ("sys.setprofile by the plugin at acme.py:3 in f in the timed steps, 50 times")


@pytest.mark.parametrize(
    ("event", "is_flagged"),
    [
        ("ctypes.dlsym", False),
        ("subprocess.Popen", False),
        ("sys._getframe", False),
        ("sys.setprofile", True),
        ("gc.get_referrers", True),
        ("open of a process's memory", True),
    ],
)
def test_readings_may_take_a_library_or_a_program_and_no_more(event: str, is_flagged: bool) -> None:
    assert bool(faults(acts=(act(event, invited=True),))) == is_flagged


def test_acts_beyond_those_that_are_kept_are_flagged() -> None:
    assert faults(acts_omitted=3) == ["3 acts of plugin code more than are kept"]


def test_an_undeclared_thread_is_told_to_declare_itself() -> None:
    (fault,) = faults(threads=(thread(),))
    assert "llmb_helpers" in fault
    assert "thread sensor 1 of the plugin" in fault


def test_a_declared_thread_within_its_share_is_no_fault() -> None:
    assert faults(SENSOR, threads=(thread(cpu_s=0.05),)) == []


def test_a_declared_thread_beyond_its_share_is_a_fault() -> None:
    (fault,) = faults(SENSOR, threads=(thread(cpu_s=0.5),))
    assert fault == "helper thread sensor 1 took 10.0% of a core, and declares 1.0%"


def test_a_thread_that_ended_before_start_is_no_fault() -> None:
    assert faults(threads=(thread(first=2, last=2),)) == []


def test_a_thread_whose_cpu_time_nobody_tells_is_believed_its_declaration() -> None:
    assert faults(SENSOR, threads=(thread(cpu_s=None),)) == []


@pytest.mark.parametrize("whose", ["children_cpu_s", "ended_threads_cpu_s"])
@pytest.mark.parametrize(("seconds", "is_flagged"), [(0.05, False), (1.0, True)])
def test_cpu_time_of_those_who_are_gone_is_a_fault_in_the_window(
    whose: str, seconds: float, is_flagged: bool
) -> None:
    assert bool(faults(**{whose: {2: 7.0, 52: 7.0 + seconds}})) == is_flagged


def test_cpu_time_of_children_before_start_is_none() -> None:
    assert faults(children_cpu_s={2: 70.0, 52: 70.0}) == []


def test_a_compiler_may_have_children() -> None:
    readings = [{COMPILATIONS_COUNTED: 1.0}] * 5 + [{COMPILATIONS_COUNTED: 2.0}]
    times = timing(telemetry=tuple(readings))
    assert faults(times=times, children_cpu_s={2: 0.0, 52: 3.0}) == []


def test_a_plugin_that_tells_of_a_compiler_excuses_no_child() -> None:
    readings = [{"compilations": 1.0}] * 5 + [{"compilations": 2.0}]
    times = timing(telemetry=tuple(readings))
    assert len(faults(times=times, children_cpu_s={2: 0.0, 52: 3.0})) == 1


def test_a_declared_thread_that_is_there_at_the_end_is_no_stranger() -> None:
    there = Presence(kind="thread", name="sensor 1 in acme.wait", origin="plugin")
    evidence = seen(found=(there,), threads=(thread(),))
    assert finding(evidence, (), "f", TIMING, (SENSOR,)).status is Status.PASS
    found = finding(evidence, (), "f", TIMING)
    assert found.status is Status.FLAG
    assert found.message.count("sensor 1") == 1
