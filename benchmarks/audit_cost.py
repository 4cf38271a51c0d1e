"""What the audit costs: seconds and peak memory of each part, and what it takes from the window.

*Parts*: one audited run, watched from outside; each line of its progress ends a part, and the
memory is that of the process at work. *Window*: tokens/s with the audit on and off, in turns (off:
every step pauses as before, and nothing is looked at), and the share of the window that the
worker itself spent in pauses.

    python benchmarks/audit_cost.py --rounds 3
    python benchmarks/audit_cost.py --rounds 5 -- --preset debug --precision FP32
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from paired import alternate, report

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
            part = self.parts[-1] if self.parts else None
            for size in self._sizes() if part else ():
                part.peak_bytes = max(part.peak_bytes, size)

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


def tokens_per_second(flags: list[str]) -> float:
    """Return the result of one run."""
    with tempfile.TemporaryDirectory() as folder:
        command = [*RUN, *flags, "--quiet", "--output-dir", folder]
        subprocess.run(command, capture_output=True, check=True)
        return float(record_in(folder)["result"]["tokens_per_second"])


def main() -> None:
    """Run both measurements."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3, help="pairs of runs with and without")
    parser.add_argument("--keep", help="an empty folder for the run that is watched")
    parser.add_argument("flags", nargs="*", default=OFFICIAL, help="of llmb run, after --")
    arguments = parser.parse_args()
    with ExitStack() as stack:
        folder = arguments.keep or stack.enter_context(tempfile.TemporaryDirectory())
        parts_of(arguments.flags, folder)
    if arguments.rounds:
        on, off = [*arguments.flags, "--audit", "full"], [*arguments.flags, "--audit", "off"]
        pairs = alternate(
            arguments.rounds, lambda: tokens_per_second(on), lambda: tokens_per_second(off)
        )
        report("audit on, tokens/s", "audit off, tokens/s", pairs)


if __name__ == "__main__":
    main()
