"""How long until all ranks know which one is missing, and how many requests does that take?

python benchmarks/lookout.py --ranks 64,128,256,512
python benchmarks/lookout.py --ranks 4096 --per-process 8 --fates killed,stopped,slow
python benchmarks/lookout.py --rate 16          requests a second that one store answers 16 clients

Each process is forked from one that has imported torch, is a client of a real TCPStore, and gives
signs as a rank does. A fault is caused. At that moment every rank whose communication would fail
gets its error, all at once, and seconds count from there. `--per-process 8`: 8 ranks a process,
each a client of its own; a process that is killed is then 8 ranks.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import re
import resource
import select
import signal
import statistics
import sys
import threading
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, NamedTuple

import psutil
from torch._C._distributed_c10d import PrefixStore, TCPStore

from llmb.parallel.lookout import Lookout, announce
from llmb.parallel.missing import Sign, key
from llmb.parallel.place import UNREACHABLE, free_port

LIMIT = timedelta(seconds=300)
CLOSED = "Connection closed by peer [127.0.0.1]:40000"
LATE = "Timed out waiting 8000ms for recv operation to complete"
#: In place of a process: the middle one of all.
MIDDLE = -1


class Fate(NamedTuple):
    """What is done to which processes, and which ranks shall be named how."""

    #: Signals by process.
    signals: dict[int, signal.Signals]
    #: Regular expression of the answer. `{n}` and `{last}`: ranks of the middle process, the last.
    answer: str
    #: The error that others have.
    symptom: str = CLOSED
    #: Processes whose main thread computes in Python, and has no error.
    slow: tuple[int, ...] = ()
    #: Processes that raise an error of their own.
    raising: tuple[int, ...] = ()
    #: Whether a process that is no rank holds the store, as torchrun's agent does.
    elsewhere: bool = False


ENDED = "ended while the others were at work"
KILL, STOP = signal.SIGKILL, signal.SIGSTOP
FATES = {
    "killed": Fate({MIDDLE: KILL}, rf"ranks? {{n}} {ENDED}"),
    "stopped": Fate({MIDDLE: STOP}, rf"ranks? {{n}} {ENDED}", LATE),
    "slow": Fate({}, r"ranks? {n} did not come within 8 s: it hangs in", LATE, slow=(MIDDLE,)),
    "killed beside a slow one": Fate({MIDDLE: KILL}, rf"ranks? {{n}} {ENDED}", slow=(1,)),
    "raises": Fate({}, r"rank ({n}): ValueError: no more", raising=(MIDDLE,)),
    "two killed": Fate({MIDDLE: KILL, -2: KILL}, rf"ranks {{n}}, {{last}} {ENDED}"),
    "two raise": Fate({}, r"rank ({n}|{last}): ValueError: no more", raising=(MIDDLE, -2)),
    "store lost": Fate({0: KILL}, re.escape(UNREACHABLE)),
    "store's host stopped": Fate({0: STOP}, re.escape(UNREACHABLE)),
    "rank 0 killed without store": Fate({0: KILL}, rf"ranks? {{zero}} {ENDED}", elsewhere=True),
    "rank 0 stopped without store": Fate(
        {0: STOP}, rf"ranks? {{zero}} {ENDED}", LATE, elsewhere=True
    ),
    "rank 0 slow": Fate({}, r"ranks? {zero} did not come within 8 s", LATE, slow=(0,)),
}


class Counted:
    """A store that counts requests."""

    def __init__(self, store: Any) -> None:
        self._store, self.requests = store, 0

    def __getattr__(self, name: str) -> Any:
        asked = getattr(self._store, name)

        def ask(*values: Any) -> Any:
            self.requests += 1
            return asked(*values)

        return ask


class Crowd:
    """Processes of ranks, and three pipes whose ends tell all of them something at once."""

    def __init__(self, fate: Fate, ranks: int, per_process: int) -> None:
        self.fate, self.ranks, self.each = fate, ranks, per_process
        self.processes = ranks // per_process
        self.places = {MIDDLE: self.processes // 2, -2: self.processes - 1}
        self.port = free_port()
        self.told, self.telling = os.pipe()  # ranks tell what they have learnt
        self.begun, self.begin = os.pipe()  # all have come
        self.met, self.meet = os.pipe()  # communication fails
        self.pids: list[int] = []
        if fate.elsewhere:
            self._fork(self._hold_store)
        for number in range(self.processes):
            self._fork(lambda number=number: self._be(number))
        self.of = self.pids[1:] if fate.elsewhere else self.pids
        os.close(self.telling)

    def at(self, place: int) -> int:
        """Return the number of the process that `place` means."""
        return self.places.get(place, place)

    def _fork(self, work: Any) -> None:
        pid = os.fork()
        if pid:
            self.pids.append(pid)
            return
        try:
            os.close(self.begin)
            os.close(self.meet)
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # torch shows each lost connection
            work()
        except BaseException as error:
            self._tell(error=f"{type(error).__name__}: {error}")
        finally:
            os._exit(0)

    def _client(self, *, holds: bool = False) -> TCPStore:
        where = ("127.0.0.1", self.port, self.ranks, holds, LIMIT)
        return TCPStore(*where, wait_for_workers=False)

    def _hold_store(self) -> None:
        store = self._client(holds=True)
        signal.pause()
        del store

    def _be(self, number: int) -> None:
        held = self._client(holds=True) if number == 0 and not self.fate.elsewhere else None
        mine = range(number * self.each, (number + 1) * self.each)
        stores = [Counted(PrefixStore("lookout", self._client())) for _ in mine]
        for rank, store in zip(mine, stores, strict=True):
            announce(rank, store)
        self._tell(here=number)
        os.read(self.begun, 1)
        left, all_told = threading.Semaphore(0), []

        def learnt(rank: int, store: Counted, said: str) -> None:
            at = time.monotonic_ns()
            self._tell(rank=rank, ns=at, said=said, requests=store.requests - before[rank])
            all_told.append(rank)
            left.release()

        before = dict.fromkeys(mine, 0)
        lookouts = [
            Lookout(rank, self.ranks, store, 8.0, lambda said, r=rank, s=store: learnt(r, s, said))
            for rank, store in zip(mine, stores, strict=True)
        ]
        started = time.monotonic()
        os.read(self.met, 1)
        steady = stores[0].requests / (time.monotonic() - started)
        before |= {rank: store.requests for rank, store in zip(mine, stores, strict=True)}
        self._tell(steady=steady)
        if number in map(self.at, self.fate.slow):
            while len(all_told) < self.each:
                sum(range(1000))
            os._exit(0)

        def meet(rank: int, store: Counted, lookout: Lookout) -> None:
            if number in map(self.at, self.fate.raising):
                said = lookout.fail(f"rank {rank}: ValueError: no more")
            else:
                said = lookout.blame(self.fate.symptom)
            learnt(rank, store, said)

        for one in zip(mine, stores, lookouts, strict=True):
            threading.Thread(target=meet, args=one, daemon=True).start()
        for _ in mine:
            left.acquire()
        del held

    def _tell(self, **what: Any) -> None:
        os.write(self.telling, (json.dumps(what) + "\n").encode())

    def messages(self, seconds: float) -> Any:
        """Yield what ranks tell, until all have ended or nothing comes for so long."""
        rest = b""
        while select.select([self.told], [], [], seconds)[0]:
            heard = os.read(self.told, 2**16)
            if not heard:
                return
            *lines, rest = (rest + heard).split(b"\n")
            for message in map(json.loads, lines):
                if "error" in message:
                    raise SystemExit(message["error"])
                yield message

    def end(self) -> None:
        """Kill whoever is left."""
        for pid in self.pids:
            os.kill(pid, signal.SIGKILL)  # nobody has waited for it, so the number is its own
        for pid in self.pids:
            os.waitpid(pid, 0)
        for pipe in (self.told, self.begun, self.met):
            os.close(pipe)


def measure(name: str, ranks: int, per_process: int, warm_s: float) -> dict[str, Any]:
    """Cause the fault `name` and return when who said what."""
    crowd = Crowd(FATES[name], ranks, per_process)
    try:
        came = sum(1 for _ in itertools.islice(crowd.messages(300.0), crowd.processes))
        if came < crowd.processes:
            raise SystemExit(f"{name}: {came} of {crowd.processes} processes came")
        os.close(crowd.begin)
        time.sleep(warm_s)
        hit = {crowd.at(place): sent for place, sent in crowd.fate.signals.items()}
        for process, sent in hit.items():
            os.kill(crowd.of[process], sent)
        began = time.monotonic_ns()
        os.close(crowd.meet)
        expected = (crowd.processes - len(hit)) * per_process
        said: list[dict[str, Any]] = []
        steady: list[float] = []
        for message in crowd.messages(60.0):
            if "steady" in message:
                steady.append(message["steady"])
            if "said" in message:
                said.append(message)
            if len(said) == expected:
                break
    finally:
        crowd.end()

    def ranks_of(place: int) -> str:
        start = crowd.at(place) * per_process
        between = "|" if crowd.fate.raising else ", "
        return between.join(map(str, range(start, start + per_process)))

    names = {"n": ranks_of(MIDDLE), "last": ranks_of(-2), "zero": ranks_of(0)}
    wanted = crowd.fate.answer.format(**names)
    at = sorted((message["ns"] - began) / 1e9 for message in said)
    asked = {message["rank"]: message["requests"] for message in said}
    answers = sorted({message["said"] for message in said})
    right = [one for one in said if re.match(wanted, one["said"])]
    return {
        "fate": name,
        "ranks": ranks,
        "heard_of": len(said),
        "of": expected,
        "right": len(right),
        "first_s": at[0] if at else None,
        "last_s": at[-1] if at else None,
        "requests_of_rank_0": asked.get(0, 0),
        "most_requests_of_another": max((n for rank, n in asked.items() if rank), default=0),
        "requests": sum(asked.values()),
        "requests_per_second_before": statistics.median(steady) if steady else None,
        "answers": answers[:3],
    }


def one_reading(ranks: int, rounds: int = 20) -> list[float]:
    """Return how many milliseconds one reading of all signs took, in each round."""
    held = TCPStore("127.0.0.1", 0, 1, True, LIMIT, wait_for_workers=False)
    client = TCPStore("127.0.0.1", held.port, 1, False, LIMIT, wait_for_workers=False)
    store = PrefixStore("lookout", client)
    for rank in range(ranks):
        store.set(key(rank), Sign(100, LATE, "distributed_c10d.py:3005, all_reduce").written())
    keys, found = [key(rank) for rank in range(ranks)], []
    for _ in range(rounds):
        began = time.perf_counter_ns()
        store.multi_get(keys)
        found.append((time.perf_counter_ns() - began) / 1e6)
    return found


def store_rate(clients: int, seconds: float = 5.0) -> tuple[float, float]:
    """Return the requests that one store answered in a second, and its CPU seconds a request.

    Each client writes its sign and looks for the answer by turns, as a rank does.
    """
    came, asking = os.pipe()
    port = free_port()
    holder = os.fork()
    if not holder:
        held = TCPStore("127.0.0.1", port, None, True, LIMIT, wait_for_workers=False)
        signal.pause()
        del held
    for number in range(clients):
        if not os.fork():
            store = TCPStore("127.0.0.1", port, None, False, LIMIT, wait_for_workers=False)
            began, made = time.monotonic(), 0
            while time.monotonic() - began < seconds:
                store.set(key(number), Sign(made, LATE, "ranks.py:120, gather").written())
                store.check(["failed"])
                made += 2
            os.write(asking, f"{made / (time.monotonic() - began)}\n".encode())
            os._exit(0)
    for _ in range(clients):
        os.wait()
    rate = sum(map(float, os.read(came, 2**16).split()))
    spent = psutil.Process(holder).cpu_times()
    os.kill(holder, signal.SIGKILL)
    os.waitpid(holder, 0)
    return rate, (spent.user + spent.system) / (rate * seconds)


def show(found: dict[str, Any]) -> str:
    """Return one row of the table."""
    seconds = [f"{found[name]:.2f}" if found["of"] else "" for name in ("first_s", "last_s")]
    counts = [found[n] for n in ("requests_of_rank_0", "most_requests_of_another", "requests")]
    return " | ".join(
        (
            f"| {found['fate']}",
            f"{found['ranks']:,}",
            *seconds,
            f"{found['right']:,} of {found['of']:,}",
            *(f"{count:,}" for count in counts),
            f"{found['answers'][0][:90]} |",
        )
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Cause each fault at each number of ranks; print a table, or JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", default="64,128,256,512")
    parser.add_argument("--per-process", type=int, default=1)
    parser.add_argument("--fates", default=",".join(FATES))
    parser.add_argument("--warm", type=float, default=3.0, help="seconds before the fault")
    parser.add_argument("--reading", type=int, default=0, help="time one reading of so many signs")
    parser.add_argument("--rate", type=int, default=0, help="clients that ask as fast as they can")
    parser.add_argument("--at-once", action="store_true", help="all faults beside one another")
    parser.add_argument("--json", action="store_true", help="print one line of JSON a fault")
    asked = parser.parse_args(arguments)
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    if asked.reading:
        took = one_reading(asked.reading)
        print(
            f"one multi_get of {asked.reading:,} signs: median {statistics.median(took):.1f} ms "
            f"({min(took):.1f} to {max(took):.1f})"
        )
        return 0
    if asked.rate:
        rate, cpu_s = store_rate(asked.rate)
        print(f"{rate:,.0f} requests/s, {cpu_s * 1e6:.1f} us of the store's CPU time a request")
        return 0
    sizes, fates = [int(n) for n in asked.ranks.split(",")], asked.fates.split(",")
    made = [(fate, ranks) for ranks in sizes for fate in fates]
    if asked.at_once:
        children = [os.fork() or os._exit(one_fault(*one, asked)) for one in made]
        return max(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children)
    return max([one_fault(*one, asked) for one in made])


def one_fault(name: str, ranks: int, asked: argparse.Namespace) -> int:
    """Cause one fault and print what became of it; return 0 if all named its cause."""
    found = measure(name, ranks, asked.per_process, asked.warm)
    line = json.dumps(found) if asked.json else show(found)
    os.write(1, f"{line}\n".encode())  # in one piece: others may write beside this process
    return int(found["right"] != found["of"])


if __name__ == "__main__":
    sys.exit(main())
