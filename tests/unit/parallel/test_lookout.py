"""One rank reads the signs of all, the others ask little; real faults are named by all ranks."""

from __future__ import annotations

import json
import socket
import sys
import threading
from contextlib import ExitStack, suppress
from datetime import timedelta
from pathlib import Path

import pytest
from torch._C._distributed_c10d import TCPStore

from llmb.parallel import lookout as lookouts
from llmb.parallel.lookout import Lookout, announce
from llmb.parallel.missing import SILENT
from llmb.parallel.place import UNREACHABLE
from tests import patience

LIMIT = timedelta(seconds=60)
BENCHMARK = Path(__file__).resolve().parents[3] / "benchmarks" / "lookout.py"
CLOSED = "Connection closed by peer"


@pytest.fixture
def port():
    """The port of a store that is there."""
    store = TCPStore("127.0.0.1", 0, 2, True, LIMIT, wait_for_workers=False)
    yield store.port
    del store


def client(port):
    return TCPStore("127.0.0.1", port, 2, False, LIMIT, wait_for_workers=False)


class Line:
    """A client's way to a store, on which nothing comes through any more once it is cut."""

    def __init__(self, port, held):
        listening = held.enter_context(socket.create_server(("127.0.0.1", 0)))
        self.port, self.is_cut = listening.getsockname()[1], False
        self._to, self._listening, self._held = port, listening, held
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        near = self._held.enter_context(self._listening.accept()[0])
        far = self._held.enter_context(socket.create_connection(("127.0.0.1", self._to)))
        for one, other in ((near, far), (far, near)):
            threading.Thread(target=self._carry, args=(one, other), daemon=True).start()

    def _carry(self, one, other):
        with suppress(OSError):  # closed, at the end of the test
            while said := one.recv(2**16):
                if not self.is_cut:
                    other.sendall(said)


@pytest.fixture
def line(port):
    with ExitStack() as held:
        yield Line(port, held)


def test_who_is_silent_is_gone_and_the_first_word_of_a_failure_counts(port):
    said = []
    for rank in range(2):
        announce(rank, client(port))
    lookout = Lookout(0, 2, client(port), 8.0, said.append)
    expected = "rank 1 ended while the others were at work, or cannot be reached (rank 0: broken)"
    assert lookout.blame("broken") == expected
    # Rank 1 may hear of the end before it fails itself: then its own give_up is called as well.
    assert Lookout(1, 2, client(port), 8.0, lambda _why: None).fail("me too") == expected
    assert said == []


def test_a_store_that_does_not_answer_holds_nobody_up(line):
    store, said = client(line.port), []
    announce(1, store)
    lookout = Lookout(1, 2, store, 8.0, said.append)
    line.is_cut = True
    assert lookout.blame(CLOSED) == UNREACHABLE
    assert lookout.fail("no more") == "no more"
    assert said == []


class Counted:
    """A store in this process that counts requests, of each kind."""

    def __init__(self, values):
        self.values, self.asked = values, []

    def set(self, key, value):
        self.asked.append("set")
        self.values[key] = value.encode()

    def check(self, keys):
        self.asked.append("check")
        return all(key in self.values for key in keys)

    def multi_get(self, keys):
        self.asked.append(f"multi_get of {len(keys)}")
        return [self.values[key] for key in keys]

    def compare_set(self, key, expected, desired):
        self.asked.append("compare_set")
        assert expected == ""
        return self.values.setdefault(key, desired.encode())


class Crowd:
    """Ranks whose turns a test takes, in place of their threads."""

    def __init__(self, monkeypatch, world_size):
        monkeypatch.setattr(threading.Thread, "start", lambda thread: None)
        values = {}
        self.stores = [Counted(values) for _ in range(world_size)]
        for rank, store in enumerate(self.stores):
            announce(rank, store)
        self.ranks = [
            Lookout(rank, world_size, store, 8.0, pytest.fail)
            for rank, store in enumerate(self.stores)
        ]

    def turn(self, dead=()):
        """Return what each living rank has learnt in one turn of all."""
        said = {}
        for rank, lookout in enumerate(self.ranks):
            if rank not in dead:
                said[rank] = lookout._turn()
                lookout._beats += 1
        return said

    def error_everywhere(self, dead, symptom=CLOSED):
        for rank, lookout in enumerate(self.ranks):
            if rank not in dead:
                lookout._symptom = symptom

    def requests(self):
        return [len(store.asked) for store in self.stores]


def test_as_long_as_all_goes_well_a_rank_asks_twice_a_beat_and_rank_0_three_times(monkeypatch):
    crowd = Crowd(monkeypatch, 5)
    before = crowd.requests()
    assert set(crowd.turn().values()) == {""}
    assert [n - m for n, m in zip(crowd.requests(), before, strict=True)] == [3, 2, 2, 2, 2]


@pytest.mark.parametrize("dead", [(2,), (2, 3)])
def test_one_rank_reads_all_signs_in_one_request_and_no_number_grows_with_the_ranks(
    monkeypatch, dead
):
    needed = {}
    for world_size in (8, 64, 512):
        with monkeypatch.context() as patch:
            crowd = Crowd(patch, world_size)
            crowd.turn()
            crowd.error_everywhere(dead)
            before = crowd.requests()
            turns = 1
            while "" in (said := crowd.turn(dead)).values():
                turns += 1
            assert len(set(said.values())) == 1
            assert f"rank{'s'[: len(dead) - 1]} {', '.join(map(str, dead))} ended" in said[0]
            asked = [n - m for n, m in zip(crowd.requests(), before, strict=True)]
            needed[world_size] = (turns, max(asked))
            assert f"multi_get of {world_size + 1}" in crowd.stores[0].asked
            assert {ask for store in crowd.stores[1:] for ask in store.asked} == {
                *("set", "check", "compare_set", "multi_get of 2")
            }
    assert len(set(needed.values())) == 1
    turns, most = needed[8]
    assert most <= 3 * turns + 2


def test_a_rank_that_works_on_is_not_dead_though_all_others_have_an_error(monkeypatch):
    crowd = Crowd(monkeypatch, 4)
    crowd.error_everywhere((3,), "Timed out waiting 8000ms")
    while not (said := crowd.turn()[0]):
        pass
    assert said.startswith("rank 3 did not come within 8 s: it hangs in lookout.py:")


def test_the_first_alarm_is_quoted_and_not_its_echoes(monkeypatch):
    crowd = Crowd(monkeypatch, 4)
    crowd.ranks[3]._symptom = "Connection reset by peer"
    crowd.turn(dead=(2,))
    crowd.error_everywhere((2,), "echo")
    crowd.ranks[3]._symptom = "Connection reset by peer"
    while not (said := crowd.turn(dead=(2,))[0]):
        pass
    assert said.endswith("rank 3: Connection reset by peer)")


def test_two_causes_at_once_are_told_in_the_order_of_the_store(monkeypatch):
    crowd = Crowd(monkeypatch, 4)
    crowd.ranks[2]._cause, crowd.ranks[1]._cause = "rank 2: no", "rank 1: no"
    assert crowd.turn() == {0: "", 1: "rank 1: no", 2: "rank 1: no", 3: "rank 1: no"}
    assert crowd.turn()[0] == "rank 1: no"


def test_others_name_rank_0_where_it_is_rank_0_that_is_silent(monkeypatch):
    crowd = Crowd(monkeypatch, 4)
    crowd.error_everywhere((0,))
    turns = [crowd.turn(dead=(0,)) for _ in range(SILENT + 2)]
    assert set(turns[-2].values()) == {""}
    (said,) = set(turns[-1].values())
    assert said.startswith("rank 0 ended while the others were at work")


@pytest.mark.parametrize(
    ("dead", "counts", "looks"),
    [
        ((), [4, 7, 8], 3),
        ((3, 5), [4, 6], 2),
        ((3,), [], 6),
    ],
    ids=["all", "all who are alive", "until nobody comes any more"],
)
def test_rank_0_stays_until_the_others_know_why(monkeypatch, dead, counts, looks):
    crowd, slept = Crowd(monkeypatch, 8), []
    crowd.error_everywhere(dead)
    while not crowd.turn(dead)[0]:
        pass
    monkeypatch.setattr(lookouts.time, "sleep", slept.append)
    known = iter([1, *counts, *[1] * 6])
    crowd.ranks[0]._store.add = lambda key, amount: next(known)
    crowd.ranks[0]._part()
    assert len(slept) == looks


@pytest.fixture(scope="module")
def faults():
    """What six ranks, each a process, said of each fault that was caused."""
    command = [sys.executable, str(BENCHMARK), "--ranks=6", "--warm=1", "--at-once", "--json"]
    done = patience.run(command)
    assert done.stdout, done.stderr
    return {found["fate"]: found for found in map(json.loads, done.stdout.splitlines())}


@pytest.mark.parametrize(
    ("fate", "said"),
    [
        ("killed", "rank 3 ended while the others were at work"),
        ("stopped", "rank 3 ended while the others were at work"),
        ("slow", "rank 3 did not come within 8 s: it hangs in lookout.py:"),
        ("killed beside a slow one", "rank 3 ended while the others were at work"),
        ("raises", "rank 3: ValueError: no more"),
        ("two killed", "ranks 3, 5 ended while the others were at work"),
        ("two raise", "ValueError: no more"),
        ("store lost", UNREACHABLE),
        ("store's host stopped", UNREACHABLE),
        ("rank 0 killed without store", "rank 0 ended while the others were at work"),
        ("rank 0 stopped without store", "rank 0 ended while the others were at work"),
        ("rank 0 slow", "rank 0 did not come within 8 s: it hangs in lookout.py:"),
    ],
)
def test_every_rank_that_is_left_names_the_cause_of_a_real_fault(faults, fate, said):
    found = faults[fate]
    assert found["right"] == found["heard_of"] == found["of"] > 0, found
    (answer,) = found["answers"]
    assert said in answer
