"""Faults at random moments of tiny runs: is every ending as docs/architecture.md says?

Each fault has a kind, a phase in which it comes, and a moment in that phase, all drawn from the
seed. Counted as wrong: another exit code than the table's, more than one line, a traceback, a
process that is left, scratch or temporary files that are left, a window that was complete and has
no record, a rank that was killed and is not named. Printed is a line for each wrong ending, with
the number that draws the same fault again, and a table: kind, ranks, faults, right, seconds from
the fault to the exit (median and worst).

    python benchmarks/faults.py --faults 200
    python benchmarks/faults.py --only 17
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

#: Words of the progress after which a fault comes; "" is the start of the command.
PHASES = (
    "",
    "asking the plugins",
    "measuring the device's ceiling",
    "starting worker",
    "timing: training",
    "first step done",
    "timing: writing evidence",
    "timing: being audited: probe head",
    "computing an honest run",
    "computing the reference",
    "judging and writing the record",
)
#: Kinds: a signal to the command; to all its processes; to one process below it; and a run
#: directory that is removed.
SIGNALS = ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1")
KINDS = (
    *SIGNALS,
    "all SIGTERM",
    "all SIGUSR1",
    "child SIGKILL",
    "child SIGTERM",
    "child SIGSEGV",
    "directory removed",
)
TINY = (
    *("--preset", "debug", "--sequence-length", "8", "--hidden-size", "64"),
    *("--intermediate-size", "128", "--num-attention-heads", "2", "--timed-steps", "12"),
    *("--plugin", "cpu", "--device", "cpu", "--precision", "FP32"),
)
INTERRUPTED, UNAVAILABLE, FAILED = 130, 3, 4
LIMIT_S = 300.0


@dataclass(frozen=True)
class Fault:
    """What happens, when, and to how many ranks."""

    number: int
    kind: str
    words: str
    delay_s: float
    ranks: int


@dataclass(frozen=True)
class Ending:
    """How a run with a fault ended."""

    fault: Fault
    code: int
    seconds: float
    wrong: tuple[str, ...]


def faults(count: int, seed: int, ranks: list[int]) -> Iterator[Fault]:
    """Yield the faults that ``seed`` draws."""
    for number in range(count):
        draw = random.Random(f"{seed}:{number}")
        kind, words = KINDS[number % len(KINDS)], draw.choice(PHASES)
        yield Fault(number, kind, words, draw.uniform(0, 0.7), draw.choice(ranks))


def inject(fault: Fault, process: subprocess.Popen[bytes], output: Path) -> str:
    """Let the fault happen; return the rank that it happens to, nothing if it is not one alone."""
    whole, name = fault.kind.split(" ")[0], fault.kind.split(" ")[-1]
    if whole == "directory":
        for folder in output.glob("*"):
            shutil.rmtree(folder, ignore_errors=True)
        return ""
    number = getattr(signal, name)
    below = psutil.Process(process.pid).children(recursive=True)
    targets, rank = [], ""
    if whole == "child":
        targets = [random.Random(fault.number).choice(below)] if below else []
        with suppress(psutil.Error, IndexError):
            rank = targets[0].environ().get("RANK", "")
    elif whole == "all":
        targets = below
    for target in targets:
        with suppress(psutil.NoSuchProcess):
            target.send_signal(number)
    if whole != "child":
        with suppress(ProcessLookupError):
            process.send_signal(number)
    return rank


def suffer(fault: Fault) -> Ending:
    """Run with a fault and return how that ended."""
    folder = Path(tempfile.mkdtemp(prefix="faults-"))
    output, temporary, said = folder / "out", folder / "tmp", folder / "stderr"
    temporary.mkdir()
    command = [sys.executable, "-m", "llmb", "run", "--output-dir", str(output), *TINY]
    if fault.ranks > 1:
        command += ["--nproc", str(fault.ranks)]
    environment = {**os.environ, "TMPDIR": str(temporary), "OMP_NUM_THREADS": "1"}
    with said.open("wb") as stderr:
        process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=stderr,
            start_new_session=True,
            preexec_fn=_like_a_terminal,
        )
    began = time.monotonic()
    while fault.words not in said.read_text() and process.poll() is None:
        if time.monotonic() - began > LIMIT_S:
            break
        time.sleep(0.02)
    time.sleep(fault.delay_s)
    family: list[psutil.Process] = []
    with suppress(psutil.NoSuchProcess):
        family = psutil.Process(process.pid).children(recursive=True)
    was_there = process.poll() is None
    rank = inject(fault, process, output) if was_there else ""
    at = time.monotonic()
    try:
        code = process.wait(LIMIT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        code = -9
    seconds = time.monotonic() - at
    _, alive = psutil.wait_procs(family, timeout=10)
    wrong = list(faulty(fault, code, said.read_text(), output, temporary, was_there))
    if (
        code not in (0, INTERRUPTED)
        and rank
        and fault.ranks > 1
        and f"rank {rank}" not in said.read_text()
    ):
        wrong.append(f"rank {rank} is not named")
    wrong += [f"process {one.pid} is left" for one in alive]
    for one in alive:
        one.kill()
    if not wrong:
        shutil.rmtree(folder, ignore_errors=True)
    else:
        wrong.append(f"see {folder}")
    return Ending(fault, code, seconds, tuple(wrong))


def _like_a_terminal() -> None:
    """Let signals end the command, though ``nohup`` or a background job ignores them here."""
    for name in SIGNALS:
        signal.signal(getattr(signal, name), signal.SIG_DFL)


def faulty(
    fault: Fault, code: int, text: str, output: Path, temporary: Path, was_there: bool
) -> Iterator[str]:
    """Yield what is wrong with an ending."""
    lines = [line for line in text.splitlines() if line.strip()]
    last = lines[-1] if lines else ""
    recorded = list(output.glob("*/record.json"))
    right = {0}
    if was_there and fault.kind.split(" ")[-1] in SIGNALS and not fault.kind.startswith("child"):
        # Before Python has begun, a signal is the system's own; a run may also be over.
        right = {INTERRUPTED, 0} if fault.words else {INTERRUPTED, *(-one for one in range(1, 16))}
        if code == INTERRUPTED and "llmb: interrupted" not in last:
            yield f"the last line is {last!r}"
        said = sum("interrupted" in line for line in lines)
        if code == INTERRUPTED and said != 1:
            yield f"{said} lines say so"
        if "timing is kept" in last and not recorded:
            yield "the record that it names is missing"
        if "no result" in last and recorded:
            yield "there is a record, and it says that there is none"
        window_is_over = "being audited" in text or "computing an honest run" in text
        if code == INTERRUPTED and window_is_over and not recorded:
            yield "a complete window was lost"
    elif was_there:
        right = {0, UNAVAILABLE, FAILED}
        if fault.kind == "child SIGTERM" and fault.ranks > 1 and "interrupted by SIGTERM" in last:
            right.add(INTERRUPTED)  # the child was a rank's own ``llmb run``
    if code not in right:
        yield f"exit code {code}, not one of {sorted(right)}"
    if "Traceback" in text:
        yield "a traceback"
    before_python = code < 0 and not fault.words
    if code not in (0, INTERRUPTED) and not before_python and not last.startswith("llmb: "):
        yield f"the last line is {last!r}"
    for path in (*output.glob("*/.scratch*"), *temporary.glob("llmb-*")):
        yield f"{path.name} is left"


def main() -> None:
    """Print wrong endings as they come, then the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--faults", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 1, 2, 4])
    parser.add_argument("--only", type=int, nargs="+", help="these numbers alone")
    given = parser.parse_args()
    found: dict[tuple[str, int], list[Ending]] = defaultdict(list)
    for fault in faults(given.faults, given.seed, given.ranks):
        if given.only and fault.number not in given.only:
            continue
        ending = suffer(fault)
        found[fault.kind, fault.ranks].append(ending)
        if ending.wrong or given.only:
            when = f"{fault.delay_s:.2f} s after {fault.words or 'the start'!r}"
            told = "; ".join(ending.wrong) or "right"
            print(
                f"{fault.number}: {fault.kind}, {fault.ranks} ranks, {when}: "
                f"exit code {ending.code} after {ending.seconds:.1f} s; {told}",
                flush=True,
            )
    print("| fault | ranks | faults | right | seconds to the exit, median | worst |")
    print("|---|---|---|---|---|---|")
    for (kind, ranks), endings in sorted(found.items()):
        times = [one.seconds for one in endings]
        right = sum(not one.wrong for one in endings)
        print(
            f"| {kind} | {ranks} | {len(endings)} | {right} "
            f"| {statistics.median(times):.1f} | {max(times):.1f} |"
        )


if __name__ == "__main__":
    main()
