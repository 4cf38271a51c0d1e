"""eager against inductor against thunder: whole ``llmb run`` processes, in turns, same sizes.

Every round runs each executor once, another one first each time, and what is reported is in the
run's own record: tokens/s and processor time of the window, memory, and how many programs were
compiled until START and from there to STOP (recompilations).

    python benchmarks/executors.py --mode train forward --rounds 3 --keep RUNS -- --preset debug
    python benchmarks/executors.py --workload litgpt-generation --mode generate --dynamic
    python benchmarks/executors.py --from RUNS        the table again, of records that are there

What stands after ``--`` is handed to ``llmb run`` as it is.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paired import ratios, spread, take_turns

EXECUTORS = ("eager", "inductor", "thunder")
MODES = ("train", "forward", "generate")
HEAD = ("executor", "tokens/s", "it / eager", "tokens/CPU-s", "it / eager", "compiled", "peak")


@dataclass(frozen=True)
class Measured:
    """What one record says of its run."""

    workload: str
    mode: str
    executor: str
    rate: float
    cpu_rate: float | None
    #: Programs compiled until START, and between START and STOP; None where nothing counts them.
    compiled: tuple[int, int] | None
    peak_bytes: int | None
    load: float | None

    @classmethod
    def of(cls, record: dict[str, Any]) -> Measured:
        """Read a record; one from before there were executors is eager."""
        timing, config, workload = record["timing"], record["config"], record["workload"]
        seconds = (timing["stop_ns"] - timing["start_ns"]) / 1e9
        rate = record["result"]["tokens_per_second"]
        cpu = timing["cpu_s"]
        return cls(
            workload=workload["name"],
            mode=config["mode"],
            executor=config.get("executor", "eager"),
            rate=rate,
            cpu_rate=rate * seconds / cpu if cpu else None,
            compiled=compilations(timing),
            peak_bytes=record["result"]["peak_memory_bytes"],
            load=record["system"]["load_before"]["load_1min"],
        )


def compilations(timing: dict[str, Any]) -> tuple[int, int] | None:
    """Return how many programs were compiled before the window, and how many within it."""
    telemetry = timing["telemetry"]
    if not any("compilations" in reading for reading in telemetry):
        return None
    at = {
        step: reading.get("compilations", 0.0)
        for step, reading in zip(timing["fence_steps"], telemetry, strict=True)
    }
    start = at[timing["warmup_steps"]]
    stop = at[timing["warmup_steps"] + timing["timed_steps"]]
    return int(start), int(stop - start)


def command(arguments: argparse.Namespace, mode: str, executor: str, folder: str) -> list[str]:
    """Return the command line of one run; what is llmb's default is left out."""
    words = [sys.executable, "-m", "llmb", "run", "--json", "--quiet", "--output-dir", folder]
    words += ["--audit", arguments.audit]
    if arguments.workload is not None:
        words += ["--workload", arguments.workload]
    if mode != "train":
        words += ["--mode", mode]
    if executor != "eager":
        words += ["--executor", executor]
    if executor == "inductor":
        words += ["--compile-mode", arguments.compile_mode] if arguments.compile_mode else []
        words += ["--dynamic"] if arguments.dynamic else []
    given = {
        "--timed-steps": arguments.timed_steps,
        "--seed": arguments.seed,
        "--nonce": f"{arguments.seed or 0:032x}",
    }
    for flag, value in given.items():
        words += [flag, str(value)] if value is not None else []
    return words + arguments.rest


class RunFailedError(RuntimeError):
    """A run ended without a record."""


def run(words: Sequence[str]) -> Measured:
    """Run ``llmb run`` and read the record it prints."""
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    try:
        return Measured.of(json.loads(done.stdout))
    except ValueError:
        said = done.stderr.strip().splitlines() or ["nothing was said"]
        raise RunFailedError(f"code {done.returncode}: {said[-1]}") from None


def measure(
    arguments: argparse.Namespace, mode: str, folder: str
) -> tuple[dict[str, list[Measured]], dict[str, str]]:
    """Let the executors take turns; one that fails once is left out, with the reason."""
    failed: dict[str, str] = {}

    def turn(executor: str) -> Measured | None:
        if executor in failed:
            return None
        try:
            done = run(command(arguments, mode, executor, folder))
        except RunFailedError as error:
            failed[executor] = str(error)
            return None
        print(f"  {mode}, {executor}: {done.rate:.1f} tokens/s", file=sys.stderr, flush=True)
        return done

    names = arguments.executor
    turns = take_turns(arguments.rounds, {name: (lambda name=name: turn(name)) for name in names})
    kept = {
        name: [one for one in runs if one is not None]
        for name, runs in turns.items()
        if name not in failed
    }
    return kept, failed


def render(runs: dict[str, list[Measured]], failed: dict[str, str]) -> list[str]:
    """Return the lines of a table: the runs of every executor, round by round."""
    lines = [line(HEAD), line(["---"] * len(HEAD))]
    eager = runs.get("eager", [])
    for name, done in runs.items():
        against = eager if name != "eager" and len(eager) == len(done) else []
        rates, cpu_rates = [one.rate for one in done], _known([one.cpu_rate for one in done])
        eager_cpu_rates = _known([one.cpu_rate for one in against])
        peaks = _known([one.peak_bytes for one in done])
        both = cpu_rates and eager_cpu_rates and len(cpu_rates) == len(eager_cpu_rates)
        cells = [
            name,
            spread(rates).show(1),
            ratios(rates, [one.rate for one in against]).show(3) if against else "",
            spread(cpu_rates).show(1) if cpu_rates else "not measured",
            ratios(cpu_rates, eager_cpu_rates).show(3) if both else "",
            compiled([one.compiled for one in done]),
            f"{max(peaks) / 1e9:.2f} GB" if peaks else "not measured",
        ]
        lines.append(line(cells))
    loads = _known([one.load for done in runs.values() for one in done])
    if loads:
        lines += ["", f"Load before a run: {spread(loads).show(1)}."]
    lines += [f"Not measured: {name}: {reason}" for name, reason in failed.items()]
    return lines


def compiled(counts: Sequence[tuple[int, int] | None]) -> str:
    """Say how many programs were compiled before the window, and within it."""
    known = [count for count in counts if count is not None]
    if not known:
        return "none counted"
    before, within = max(count[0] for count in known), max(count[1] for count in known)
    return f"{before}, {within} in the window"


def _known(values: Sequence[Any]) -> list[Any]:
    return [value for value in values if value is not None]


def line(cells: Sequence[str]) -> str:
    """Return one line of a Markdown table."""
    return "| " + " | ".join(cells) + " |"


def from_records(folder: Path) -> None:
    """Print the tables of all records below ``folder``, in the order in which they were made."""
    records = [json.loads(file.read_text("utf-8")) for file in folder.rglob("record.json")]
    tables: dict[tuple[str, str], dict[str, list[Measured]]] = {}
    for record in sorted(records, key=lambda record: record["created_utc"]):
        one = Measured.of(record)
        table = tables.setdefault((one.workload, one.mode), {})
        table.setdefault(one.executor, []).append(one)
    for (workload, mode), runs in tables.items():
        print(f"### {workload}, {mode}\n", *render(runs, {}), "", sep="\n")


def parse() -> argparse.Namespace:
    """Read the command line."""
    words = sys.argv[1:]
    rest = words[words.index("--") + 1 :] if "--" in words else []
    own = words[: words.index("--")] if "--" in words else words
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workload", help="a name or a file [default: llmb's own]")
    parser.add_argument("--mode", nargs="+", choices=MODES, default=list(MODES))
    parser.add_argument("--executor", nargs="+", choices=EXECUTORS, default=list(EXECUTORS))
    parser.add_argument("--compile-mode", help="inductor's")
    parser.add_argument("--dynamic", action="store_true", help="inductor: dynamic shapes")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--timed-steps", type=int)
    parser.add_argument("--seed", type=int, default=0, help="the same tokens for all")
    parser.add_argument("--audit", default="off", help="as of `llmb run`")
    parser.add_argument("--keep", type=Path, help="leave the run directories there")
    parser.add_argument("--from", dest="records", type=Path, help="run nothing, read records")
    arguments = parser.parse_args(own)
    arguments.rest = rest
    return arguments


def main() -> None:
    """Measure every mode that was asked for, or show what was measured before."""
    arguments = parse()
    if arguments.records is not None:
        from_records(arguments.records)
        return
    for mode in arguments.mode:
        with tempfile.TemporaryDirectory() as scratch:
            folder = str(arguments.keep or scratch)
            runs, failed = measure(arguments, mode, folder)
        names = {one.workload for done in runs.values() for one in done}
        print(f"### {', '.join(names)}, {mode}\n", *render(runs, failed), sep="\n")
        print(f"Handed on: {' '.join(arguments.rest) or 'nothing'}.\n")


if __name__ == "__main__":
    main()
