"""At every fence: threads with their CPU time, and what child processes took."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from llmb.observe.fence_census import FenceCensus, wait_for_children
from llmb.observe.origins import CodeOrigin
from llmb.records.evidence import Origin, ThreadSeen

SECOND = 1_000_000_000
LINUX = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs /proc of Linux")


@pytest.fixture
def census() -> FenceCensus:
    """Return one that knows who is there now."""
    there = {*sys._current_frames()}
    return FenceCensus(
        lambda thread, identity: identity in there,
        lambda thread: None,
        lambda code: code.co_filename,
    )


def threads(census: FenceCensus, origin: Origin = "plugin") -> list[ThreadSeen]:
    """Return the threads of this file's code, as ``origin``."""

    def of(file: str) -> CodeOrigin:
        ours = file == __file__
        return CodeOrigin(origin if ours else "python", "llmb-acme" if ours else None, file)

    return list(census.threads(_origins(of)))


def _origins(of: Any) -> Any:
    return SimpleNamespace(of=of)


def busy(over: threading.Event) -> None:
    while not over.is_set():
        sum(range(1000))


def idle(over: threading.Event) -> None:
    over.wait()


@LINUX
@pytest.mark.parametrize(("work", "least", "most"), [(busy, 0.02, 10.0), (idle, 0.0, 0.015)])
def test_a_threads_cpu_time_is_that_between_its_first_and_last_fence(
    census: FenceCensus, work: Any, least: float, most: float
) -> None:
    over = threading.Event()
    thread = threading.Thread(target=work, args=(over,), name="sensor")
    thread.start()
    try:
        for steps in (3, 13, 23):
            census.look(steps, steps * SECOND)
            time.sleep(0.4)
    finally:
        over.set()
        thread.join()
    (seen,) = threads(census)
    assert (seen.name, seen.first, seen.last, seen.wall_s) == ("sensor", 3, 23, 20.0)
    assert seen.cpu_s is not None
    assert least <= seen.cpu_s <= most


def test_a_thread_that_has_gone_was_there(census: FenceCensus) -> None:
    over = threading.Event()
    thread = threading.Thread(target=idle, args=(over,), name="sensor")
    thread.start()
    census.look(3, 3)
    over.set()
    thread.join()
    census.look(13, 13)
    (seen,) = threads(census)
    assert (seen.first, seen.last) == (3, 3)


def test_torchs_threads_are_not_written_down(census: FenceCensus) -> None:
    over = threading.Event()
    thread = threading.Thread(target=idle, args=(over,))
    thread.start()
    census.look(3, 3)
    over.set()
    thread.join()
    assert threads(census, "needed") == []


@LINUX
@pytest.mark.parametrize("is_waited_for", [True, False])
def test_the_cpu_time_of_children_counts_whether_they_live_or_have_ended(
    census: FenceCensus, is_waited_for: bool
) -> None:
    census.look(3, 3)
    child = subprocess.Popen(
        [sys.executable, "-c", "import time; sum(range(20_000_000)); print(flush=True); input()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert child.stdout is not None
    child.stdout.readline()
    if is_waited_for:
        child.communicate(b"\n")
    census.look(13, 13)
    child.kill()
    child.communicate()
    took = census.children_cpu_s
    assert took[13] - took[3] > 0.1


@LINUX
def test_the_cpu_time_of_threads_that_have_ended_is_kept(census: FenceCensus) -> None:
    census.look(3, 3)
    thread = threading.Thread(target=sum, args=(range(20_000_000),))
    thread.start()
    thread.join()
    task = Path(f"/proc/self/task/{thread.native_id}")
    while task.exists():  # Python is done with a thread before the system is
        time.sleep(0.01)
    census.look(13, 13)
    took = census.ended_threads_cpu_s
    assert took[13] - took[3] > 0.1


@LINUX
def test_the_cpu_time_of_threads_that_live_is_not_that_of_the_ended(census: FenceCensus) -> None:
    over = threading.Event()
    thread = threading.Thread(target=busy, args=(over,))
    thread.start()
    try:
        census.look(3, 3)
        time.sleep(0.3)
        census.look(13, 13)
    finally:
        over.set()
        thread.join()
    took = census.ended_threads_cpu_s
    assert took[13] - took[3] < 0.05


BUSY = "import time\nwhile time.process_time() < {0}: pass\ntime.sleep(60)"


@LINUX
@pytest.mark.parametrize(
    ("busy_s", "patience_s", "is_at_rest"), [(1.0, 60.0, True), (60.0, 0.5, False)]
)
def test_busy_children_are_waited_for_and_not_for_ever(
    busy_s: float, patience_s: float, is_at_rest: bool
) -> None:
    with subprocess.Popen([sys.executable, "-c", BUSY.format(busy_s)]) as child:
        time.sleep(0.5)  # it has begun
        wait_for_children(patience_s)
        took = sum(psutil.Process(child.pid).cpu_times()[:2])
        child.kill()
    assert (took >= 0.9 * busy_s) is is_at_rest


def test_without_children_nothing_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psutil.Process, "children", lambda self: [])
    monkeypatch.setattr(time, "sleep", lambda seconds: pytest.fail("it sleeps"))
    wait_for_children()
