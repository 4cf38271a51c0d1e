r"""What the audit costs: seconds and peak memory of each part, and what it takes from the window.

*Parts*: one audited run, watched from outside; each line of its progress ends a part, and the
memory is that of the process at work, and so is the share of the window that it spent in pauses.
*Window*: tokens/s and the median step with the audit on and off, in turns (off: every step pauses
as before, and nothing is looked at). Windows begin at one of two steps, as it is drawn: with few
warm-up steps one of them is among the first, slower ones.

    python benchmarks/audit_cost.py --rounds 0
    python benchmarks/audit_cost.py --only-window --rounds 6 -- --plugin cpu --precision BF16 \
        --batch-size 1 --warmup-steps 10 --timed-steps 20
    python benchmarks/audit_cost.py --rounds 5 -- --preset debug --precision FP32
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil
from paired import Pair, alternate, report

RUN = [sys.executable, "-m", "llmb", "run"]
OFFICIAL = ["--plugin", "cpu", "--precision", "BF16", "--batch-size", "1"]
_EVERY_S = 0.2
#: Which rules each part serves; what is not named here is the run itself.
RULES = {
    "timing: being audited: what was replaced": "N1 N2",
    "timing: being audited: the last step": "E1",
    "timing: being audited: weights": "E1 G1 W1",
    "timing: being audited: types of operands": "P2",
    "timing: being audited: probe branches": "E2 E3 P1",
    "timing: being audited: probe head": "E2 E3 P1",
    "computing an honest run on the device: what importing changes": "N1",
    "computing an honest run on the device: live": "E1",
    "computing an honest run on the device: step": "G1",
    "computing an honest run on the device: branches": "E2 E3 P1",
    "computing an honest run on the device: head": "E2 E3 P1",
    "computing an honest run on the device: optimizer steps": "O2",
    "computing an honest run on the device: what was replaced": "N1",
    "computing the reference: pristine weights": "W1",
    "computing the reference: live": "E1",
    "computing the reference: step": "G1",
    "computing the reference: branches": "E2 E3 P1",
    "computing the reference: head": "E2 E3 P1",
    "computing the reference: the declared format on the host": "E1 E2",
    "measuring the device's ceiling": "K1",
}


@dataclass
class Part:
    """A part of the run, from its line of progress to the next."""

    name: str
    begin_s: float
    end_s: float = 0.0
    peak_bytes: int = 0


class Watch:
    """Notes the largest resident set among a process and its children, part by part."""

    def __init__(self, pid: int) -> None:
        """Watch process ``pid``."""
        self._process = psutil.Process(pid)
        self._ended = threading.Event()
        self.parts: list[Part] = []
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def begin(self, name: str) -> None:
        """Note that a part begins."""
        now = time.monotonic()
        if self.parts:
            self.parts[-1].end_s = now
        self.parts.append(Part(name, now))

    def end(self) -> None:
        """Stop watching."""
        self._ended.set()
        self._thread.join()
        self.parts[-1].end_s = time.monotonic()

    def _look(self) -> None:
        while not self._ended.wait(_EVERY_S):
            if self.parts:
                part = self.parts[-1]
                part.peak_bytes = max(part.peak_bytes, *self._sizes(), 0)

    def _sizes(self) -> Iterator[int]:
        with suppress(psutil.Error):
            for process in self._process.children(recursive=True):
                with suppress(psutil.Error):
                    yield process.memory_info().rss


def watched(flags: list[str], folder: str) -> tuple[list[Part], dict[str, Any]]:
    """Make an audited run; return its parts and its record."""
    command = [*RUN, *flags, "--output-dir", folder]
    process = subprocess.Popen(
        command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
    )
    watch = Watch(process.pid)
    assert process.stderr is not None
    for line in process.stderr:
        name = line.strip().removeprefix("llmb: ")
        if ": step " not in name:
            watch.begin(name)
    process.wait()
    watch.end()
    if process.returncode != 0:
        sys.exit(f"the run ended with code {process.returncode}: {watch.parts[-1].name}")
    return watch.parts, record_in(folder)


def record_in(folder: str) -> dict[str, Any]:
    """Return the record of the one run in ``folder``."""
    (path,) = Path(folder).glob("*/record.json")
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def parts_of(flags: list[str], folder: str) -> None:
    """Print the parts of one audited run in ``folder``, and what its pauses took."""
    parts, record = watched(flags, folder)
    (steps,) = Path(folder).glob("*/evidence/repeat-0/steps.json")
    pauses = json.loads(steps.read_text())
    window = record["timing"]["repeats"][0]
    length_s = (window["stop_ns"] - window["start_ns"]) / 1e9
    for part in parts:
        seconds, rules = part.end_s - part.begin_s, RULES.get(part.name, "")
        print(f"{part.name:<66} {seconds:7.1f} s {part.peak_bytes / 1e9:6.1f} GB  {rules}")
    audit = sum(part.end_s - part.begin_s for part in parts if part.name in RULES)
    share = pauses["pause_ns"] / 1e9 / length_s
    print(f"window {length_s:.1f} s, audit {audit:.1f} s; verdict {record['audit']['verdict']}")
    print(
        f"all pauses {pauses['pause_ns'] / 1e6:.1f} ms, {share:.3%} of the window; "
        f"the longest {pauses['longest_pause_ns'] / 1e6:.1f} ms"
    )


@dataclass(frozen=True)
class Window:
    """The timed window of one run."""

    tokens_per_second: float
    #: Median of its steps in seconds: without the steps that a pause or the host held up.
    step_s: float


def window_of(flags: list[str]) -> Window:
    """Return the window of one run."""
    with tempfile.TemporaryDirectory() as folder:
        command = [*RUN, *flags, "--quiet", "--output-dir", folder]
        subprocess.run(command, capture_output=True, check=True)
        record = record_in(folder)
    timing = record["timing"]["repeats"][0]
    stamps = timing["step_ns"][timing["warmup_steps"] - 1 :]
    steps = [(later - earlier) / 1e9 for earlier, later in pairwise(stamps)]
    window = Window(record["result"]["tokens_per_second"], statistics.median(steps))
    print(f"{' '.join(flags[-2:])}: {window}", flush=True)
    return window


def main() -> None:
    """Run both measurements."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3, help="pairs of runs with and without")
    parser.add_argument("--only-window", action="store_true", help="leave the parts out")
    parser.add_argument("--keep", help="an empty folder for the run that is watched")
    parser.add_argument("flags", nargs="*", default=OFFICIAL, help="of llmb run, after --")
    arguments = parser.parse_args()
    if not arguments.only_window:
        with ExitStack() as stack:
            folder = arguments.keep or stack.enter_context(tempfile.TemporaryDirectory())
            parts_of(arguments.flags, folder)
    if arguments.rounds:
        on, off = [*arguments.flags, "--audit", "full"], [*arguments.flags, "--audit", "off"]
        pairs = alternate(arguments.rounds, lambda: window_of(on), lambda: window_of(off))
        for unit, read in (("tokens/s", "tokens_per_second"), ("s a step (median)", "step_s")):
            values = [Pair(getattr(p.a, read), getattr(p.b, read)) for p in pairs]
            report(f"audit on, {unit}", f"audit off, {unit}", values)


if __name__ == "__main__":
    main()
