"""How commands end early: the table in docs/architecture.md, cell by cell, and signals."""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from llmb import endings
from llmb.endings import Ending, Event, Interrupted, Kept, RunPhase
from llmb.errors import (
    NotEnoughMemoryError,
    NotEnoughSpaceError,
    RunFailedError,
)

PAGE = Path(__file__).parents[2] / "docs/architecture.md"
COLUMNS = {
    "signal": Event.SIGNAL,
    "early warning": Event.WARNING,
    "process killed": Event.CHILD_KILLED,
    "process hangs": Event.CHILD_HUNG,
    "memory refused": Event.NO_MEMORY,
    "disk full": Event.NO_SPACE,
    "directory removed": Event.NO_DIRECTORY,
    "clock set": Event.CLOCK_STEPPED,
}


def cells() -> Iterator[tuple[str, str, str]]:
    """Yield phase, event and what the page says of them."""
    lines = [line for line in PAGE.read_text().splitlines() if line.startswith("| ")]
    table = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    head, *rows = table
    for phase, *said in rows:
        yield from ((phase, event, cell) for event, cell in zip(head[1:], said, strict=True))


CELLS = list(cells())


def test_the_page_has_every_phase_and_every_event() -> None:
    assert {phase for phase, _, _ in CELLS} == {phase.name for phase in RunPhase}
    assert {COLUMNS[event] for _, event, _ in CELLS} == {*Event}
    assert len(CELLS) == len(RunPhase) * len(Event)


@pytest.mark.parametrize(("phase", "event", "said"), CELLS, ids=lambda value: str(value))
def test_an_event_means_in_a_phase_what_the_page_says(phase: str, event: str, said: str) -> None:
    found: Ending = endings.ending(RunPhase[phase], COLUMNS[event])
    code = "goes on" if found.exit_code is None else str(found.exit_code)
    assert f"{found.kept.value}, {code}" == said


@pytest.mark.parametrize(
    ("error", "event"),
    [
        (Interrupted("SIGTERM"), Event.SIGNAL),
        (Interrupted("SIGUSR1"), Event.WARNING),
        (KeyboardInterrupt(), Event.SIGNAL),
        (NotEnoughMemoryError("of 8 GB"), Event.NO_MEMORY),
        (NotEnoughSpaceError("of 8 GB"), Event.NO_SPACE),
        (OSError(errno.EDQUOT, "quota"), Event.NO_SPACE),
        (FileNotFoundError(errno.ENOENT, "gone"), Event.NO_DIRECTORY),
        (RunFailedError("the worker was killed"), Event.CHILD_KILLED),
    ],
    ids=repr,
)
def test_an_error_is_one_event(error: BaseException, event: Event) -> None:
    assert endings.event_of(error) is event


def test_weights_are_kept_after_a_signal_and_not_on_a_full_disk() -> None:
    assert endings.ending(RunPhase.HONEST_RUN, Event.SIGNAL).keeps_weights
    assert not endings.ending(RunPhase.HONEST_RUN, Event.NO_SPACE).keeps_weights
    assert not endings.ending(RunPhase.WINDOW, Event.SIGNAL).keeps_weights
    assert endings.ending(RunPhase.WINDOW, Event.SIGNAL).kept is Kept.LOG


# -- signals ----------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def _handlers() -> Iterator[None]:
    """Begin with the signals of a shell, and forget what was noted."""
    for name in endings.STOPPING:
        signal.signal(getattr(signal, name), signal.SIG_DFL)
    endings._signals = endings._Signals()
    yield
    endings._signals = endings._Signals()


def send(name: str) -> None:
    """Send this process a signal; its handler has run when this returns."""
    os.kill(os.getpid(), getattr(signal, name))


@pytest.mark.parametrize("name", [*endings.STOPPING, endings.WARNING])
def test_every_signal_of_a_scheduler_is_an_interruption_with_its_name(name: str) -> None:
    endings.listen()
    with pytest.raises(Interrupted, match=f"^interrupted by {name}$") as caught:
        send(name)
    assert caught.value.by == name


def test_a_signal_that_is_ignored_stays_ignored() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # what nohup does
    endings.listen()
    send("SIGHUP")
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN


def test_an_early_warning_is_taken_by_whoever_was_started_with_it_ignored() -> None:
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # a job file: torchrun would end of it
    endings.listen()
    with pytest.raises(Interrupted, match="SIGUSR1"):
        send("SIGUSR1")


def test_a_signal_waits_for_the_end_of_what_must_not_be_cut() -> None:
    endings.listen()
    done = []

    def write() -> None:
        with endings.held():
            send("SIGTERM")
            send("SIGINT")
            done.append("the record")

    with pytest.raises(Interrupted, match="SIGTERM"):
        write()
    assert done == ["the record"]


def test_an_early_warning_waits_where_it_is_asked_for_and_others_do_not() -> None:
    endings.listen()

    def work() -> None:
        with endings.held(endings.WARNING):
            send("SIGUSR1")
            send("SIGINT")

    with pytest.raises(Interrupted, match="SIGINT"):
        work()
    with pytest.raises(Interrupted, match="SIGUSR1"):
        endings.raise_noted()


def test_a_signal_held_twice_waits_for_the_outer_end() -> None:
    endings.listen()
    done = []

    def work() -> None:
        with endings.held():
            with endings.held():
                send("SIGTERM")
            done.append("inner")

    with pytest.raises(Interrupted):
        work()
    assert done == ["inner"]


def test_a_signal_that_is_not_raised_at_the_end_waits_to_be_asked_for() -> None:
    endings.listen()
    with endings.held(raises=False):
        send("SIGHUP")
    with pytest.raises(Interrupted, match="SIGHUP"):
        endings.raise_noted()


def test_the_same_signal_said_twice_interrupts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    endings.listen()
    with pytest.raises(Interrupted):
        send("SIGTERM")
    send("SIGTERM")  # while the first is being cleaned up after
    now = endings.clock.now_ns()
    monkeypatch.setattr(endings.clock, "now_ns", lambda: now + endings._TWICE_NS)
    with pytest.raises(Interrupted):
        send("SIGTERM")


def test_without_a_signal_nothing_is_raised() -> None:
    done = []
    with endings.held():
        done.append("inside")
    endings.raise_noted()
    done.append("after")
    assert done == ["inside", "after"]


def test_a_command_that_is_over_is_not_ended_again() -> None:
    endings.listen()
    endings.stop_listening()
    send("SIGTERM")
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN


def test_handlers_of_others_stay_as_they_are() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    endings.stop_listening()
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
