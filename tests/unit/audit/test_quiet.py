"""What counts as a disturbed host and as a hindered worker, at each limit."""

from __future__ import annotations

from typing import Any

import pytest

from llmb.audit import quiet
from tests.unit.builders_runtime import host_load, system, timing


def disturbances(before: dict | None = None, after: dict | None = None) -> list[str]:
    first = host_load(**{"total_cpu_s": 1000.0, **(before or {})})
    second = host_load(**{"total_cpu_s": 2000.0, **(after or {})})
    return list(quiet.disturbances(system(first, second)))


def test_a_host_as_a_run_alone_leaves_it_is_quiet() -> None:
    assert disturbances({"load_1min": 2.0}, {"load_1min": 5.0, "steal_s": 20.0}) == []


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        ({"load_1min": 2.1}, {}, "load 2.1 on 4 cores before"),
        ({}, {"load_1min": 5.1}, "load 5.1 on 4 cores after"),
        ({"load_1min": None}, {}, "not known"),
        ({}, {"load_1min": None}, "not known"),
        ({}, {"steal_s": 20.1}, "2% of the host's CPU time"),
        ({}, {"throttled_periods": 1}, "quota"),
    ],
)
def test_each_disturbance_is_named(before: dict, after: dict, words: str) -> None:
    (found,) = disturbances(before, after)
    assert words in found


def test_steal_and_quota_that_nobody_measured_disturb_nobody() -> None:
    assert disturbances({"steal_s": None}, {"steal_s": 900.0}) == []
    unknown = {"throttled_periods": None}
    assert disturbances(unknown, unknown) == []


def hindrances(busy: float | None = 4.0, cpu: dict | None = None, **changes: Any) -> list[str]:
    """Return what hindered a worker that kept ``busy`` cores busy in a window of 5 s."""
    cpu_s = None if busy is None else 5 * busy
    return list(quiet.hindrances(timing(cpu_s=cpu_s, **changes), system(**cpu or {})))


@pytest.mark.parametrize(("busy", "hindered"), [(3.88, False), (3.87, True), (1.0, True)])
def test_a_processor_that_computes_is_unhindered_only_with_all_of_its_cores(
    busy: float, hindered: bool
) -> None:
    assert bool(hindrances(busy)) == hindered


def test_two_threads_of_a_core_count_as_one() -> None:
    twice = {"physical_cores": 4, "logical_cores": 8}
    assert hindrances(3.9, {**twice, "usable_cores": 8}) == []
    assert hindrances(1.95, {**twice, "usable_cores": 4}) == []
    unknown = {"physical_cores": None, "usable_cores": 8}
    assert hindrances(3.9, unknown) == ["the worker had 3.90 of 8 cores"]


@pytest.mark.parametrize("step_clock", ["enqueue", "device"])
def test_a_process_that_only_tells_a_device_what_to_do_needs_few_cores(step_clock: str) -> None:
    assert hindrances(0.3, step_clock=step_clock) == []
    assert hindrances(1.5, step_clock=step_clock) == ["the worker had 1.50 of 4 cores"]


@pytest.mark.parametrize(("load", "hindered"), [(2.9, False), (3.1, True), (None, False)])
def test_beside_such_a_process_load_after_the_run_is_other_programs(
    load: float | None, hindered: bool
) -> None:
    launching = timing(cpu_s=5.0, step_clock="enqueue")
    host = system(after=host_load(load_1min=load))
    assert bool(list(quiet.hindrances(launching, host))) == hindered


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"busy": None}, "CPU time is not known"),
        ({"stop_ns": 0}, "CPU time is not known"),
        ({"starved_steps": 2}, "2 steps waited for their seed"),
    ],
)
def test_each_hindrance_is_named(changes: dict, words: str) -> None:
    (found,) = hindrances(**changes)
    assert words in found


@pytest.mark.parametrize(
    ("telemetry", "words"),
    [
        (({}, {"throttled": 1.0}, {}, {}, {}, {}), "the device slowed itself"),
        (
            ({"compilations": 3.0},) * 4 + ({"compilations": 4.0},) * 2,
            "programs were compiled inside the window",
        ),
    ],
)
def test_what_the_plugin_tells_is_named_and_is_no_hindrance(telemetry: Any, words: str) -> None:
    assert hindrances(telemetry=telemetry) == []
    told = timing([1000] * 6, cpu_s=20.0, warmup_steps=2, telemetry=telemetry)
    assert list(quiet.told_by_plugin(told)) == [words]


def test_what_the_device_did_before_the_window_is_not_told() -> None:
    early = timing([1000] * 6, cpu_s=20.0, warmup_steps=2).model_copy(
        update={
            "warmup_steps": 12,
            "timed_steps": 50,
            "start_ns": 10**9,
            "telemetry": ({"throttled": 1.0, "compilations": 1.0}, *[{"compilations": 2.0}] * 6),
        }
    )
    assert list(quiet.told_by_plugin(early)) == []
