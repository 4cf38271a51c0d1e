"""A child that is silent for long: it is measured whether it works, seldom, and not before."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace

import pytest

from llmb import clock
from llmb.measure import host
from llmb.supervision.silence import Silence, Vigil

PID = 4711


@dataclass
class Machine:
    """A clock that is set by the test, and a process that keeps ``cores`` busy."""

    s: float = 0.0
    cpu_s: float | None = 0.0
    readings: int = 0

    def wait(self, seconds: int, cores: float, vigil: Vigil, step: int | None = None) -> None:
        for _ in range(seconds * 4):
            self.s += 0.25
            if self.cpu_s is not None:
                self.cpu_s += cores / 4
            vigil.moment(step)

    def cpu_s_of(self, pid: int) -> float | None:
        assert pid == PID
        self.readings += 1
        return self.cpu_s


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    made = Machine()
    monkeypatch.setattr(clock, "now_ns", lambda: int(made.s * 1e9))
    monkeypatch.setattr(host, "cpu_s_of", made.cpu_s_of)
    return made


Keep = Callable[..., Vigil]


@pytest.fixture
def keep(machine: Machine) -> Keep:
    def call(module: str = "llmb.processes.worker", device: str = "cpu") -> Vigil:
        return Vigil(SimpleNamespace(module=module, pid=PID), device)

    return call


def test_a_silence_is_told_from_its_second_minute_on(machine: Machine, keep: Keep) -> None:
    vigil = keep()
    machine.wait(59, 2.0, vigil)
    assert vigil.moment(3) is None
    machine.wait(1, 2.0, vigil)
    assert vigil.moment(3) == Silence("worker", 60.0, 2.0, on_cpu=True, step=3)


def test_in_its_first_fifty_seconds_nothing_is_measured_and_then_once_in_ten(
    machine: Machine, keep: Keep
) -> None:
    vigil = keep()
    machine.wait(49, 1.0, vigil)
    assert machine.readings == 0
    machine.wait(71, 1.0, vigil)
    assert machine.readings == 8


def test_steps_of_less_than_fifty_seconds_are_never_measured(machine: Machine, keep: Keep) -> None:
    vigil = keep()
    for step in range(20):
        machine.wait(45, 2.0, vigil, step)
        vigil.restart()
    assert machine.readings == 0


def test_what_is_told_is_what_the_process_does_now(machine: Machine, keep: Keep) -> None:
    vigil = keep()
    machine.wait(600, 1.98, vigil)
    busy = vigil.moment()
    machine.wait(20, 0.0, vigil)
    idle = vigil.moment()
    assert busy is not None
    assert busy.busy_cores == pytest.approx(1.98)
    assert idle is not None
    assert idle.busy_cores == 0.0
    assert idle.since_s == 620


def test_what_is_shown_begins_another_silence(machine: Machine, keep: Keep) -> None:
    vigil = keep()
    machine.wait(100, 1.0, vigil)
    vigil.restart()
    machine.wait(59, 0.0, vigil)
    assert vigil.moment() is None
    machine.wait(2, 0.0, vigil)
    silence = vigil.moment()
    assert silence is not None
    assert (silence.since_s, silence.busy_cores) == (61.0, 0.0)


def test_of_a_process_that_cannot_be_looked_at_nothing_is_claimed(
    machine: Machine, keep: Keep
) -> None:
    vigil = keep()
    machine.cpu_s = None
    machine.wait(60, 0.0, vigil)
    silence = vigil.moment()
    assert silence is not None
    assert silence.busy_cores is None


def test_a_descendant_that_has_ended_makes_no_work_undone(machine: Machine, keep: Keep) -> None:
    vigil = keep()
    machine.wait(59, 1.0, vigil)
    machine.cpu_s = 5.0
    machine.wait(1, 0.0, vigil)
    silence = vigil.moment()
    assert silence is not None
    assert silence.busy_cores == 0.0


@pytest.mark.parametrize(("device", "on_cpu"), [("cpu", True), ("cuda:0", False), ("xpu", False)])
def test_it_is_known_whether_an_accelerator_may_work_while_no_core_does(
    machine: Machine, keep: Keep, device: str, on_cpu: bool
) -> None:
    vigil = keep("llmb.processes.honest_run", device)
    machine.wait(60, 0.0, vigil)
    silence = vigil.moment()
    assert silence is not None
    assert (silence.who, silence.on_cpu) == ("honest run", on_cpu)


def test_a_silence_of_a_device_with_a_slow_compiler_says_how_slow(machine: Machine) -> None:
    vigil = Vigil(SimpleNamespace(module="llmb.processes.worker", pid=PID), "warp:0", 2.5)
    machine.wait(60, 0.0, vigil)
    silence = vigil.moment()
    assert silence is not None
    assert silence.compiling_min == 2.5
