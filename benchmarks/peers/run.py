"""llmb's own reference against other systems at the same sizes, in turns: tokens/s and ratios.

Every side is a process of its own with the same environment, number of threads, sizes, batch and
format. Sides of a row are started one after the other, warm up, and then take turns of a few
seconds, each round another one first (``--size small``); at full size, where two do not fit the
memory, every turn is a process of its own (``--fresh``). A ratio is made within a round.

    python benchmarks/peers/run.py --rounds 10
    python benchmarks/peers/run.py --only llama-43m --mode train --peers transformers litgpt-loop
    python benchmarks/peers/run.py --size full --rounds 3 --mode train --gpt-bench PATH/single
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from gate import About, Side, SideFailedError, Turn, ending
from job import SIZES, Job
from paired import ratios, spread, take_turns
from side import SIDES

from llmb.plugin.builtin.host import compute_threads

#: Which sides a mode and a family have; the first two are llmb's.
OURS = ("llmb", "llmb-inductor")
PEERS = {
    ("train", "llama"): (
        "transformers",
        "litgpt",
        "litgpt-loop",
        "optimum-benchmark",
        "gpt-bench",
    ),
    ("train", "gpt2"): ("transformers", "optimum-benchmark"),
    ("forward", "llama"): ("transformers", "litgpt", "optimum-benchmark"),
    ("forward", "gpt2"): ("transformers", "optimum-benchmark"),
    ("generate", "llama"): (
        "transformers",
        "transformers-dynamic",
        "litgpt",
        "optimum-benchmark",
    ),
    ("generate", "gpt2"): ("transformers", "transformers-dynamic", "optimum-benchmark"),
}
MODES = ("train", "forward", "generate")


@dataclass
class Row:
    """One workload in one mode: what every side did, and why another one did not."""

    job: Job
    about: dict[str, About] = field(default_factory=dict)
    turns: dict[str, list[Turn]] = field(default_factory=dict)
    peak_bytes: dict[str, int] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)


def environment(threads: int, *, keep_memory: bool) -> dict[str, str]:
    """Return the environment of every side: what the plugin cpu asks for, for all alike."""
    huge = {"THP_MEM_ALLOC_ENABLE": "1"} if keep_memory else {}
    offline = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    return {**os.environ, "OMP_NUM_THREADS": str(threads), **huge, **offline}


def sides_of(job: Job, wanted: list[str] | None, env: dict[str, str], folder: Path) -> list[Side]:
    """Return the sides of a row, not yet started."""
    names = [*OURS, *PEERS[job.mode, job.family]]
    if wanted is not None:
        names = [name for name in names if name in wanted or name == OURS[0]]
    if job.gpt_bench is None:
        names = [name for name in names if name != "gpt-bench"]
    script = str(Path(__file__).with_name("side.py"))
    return [
        Side(name, [sys.executable, script, name, job.to_json()], env, folder / f"{name}.log")
        for name in names
    ]


def together(row: Row, sides: list[Side], rounds: int, seconds: float) -> None:
    """Start all sides, then let them take turns; one that cannot start is left out."""
    with ending(sides):
        for side in sides:
            try:
                row.about[side.name] = side.start()
            except SideFailedError as error:
                row.failed[side.name] = str(error)
            else:
                tell(f"  {side.name} is warm: {side.about.step_seconds:.3f} s a step")
        ready = [side for side in sides if side.name in row.about]
        turns = {side.name: (lambda side=side: side.turn(seconds)) for side in ready}
        row.turns = take_turns(rounds, turns)
        row.peak_bytes = {side.name: side.peak_bytes for side in ready}


def one_by_one(row: Row, sides: list[Side], rounds: int, seconds: float) -> None:
    """Start a side for its turn only: two at a time do not fit the memory."""

    def turn(side: Side) -> Turn | None:
        if side.name in row.failed:
            return None
        try:
            with ending([side]):
                row.about[side.name] = side.start()
                done = side.turn(seconds)
        except SideFailedError as error:
            row.failed[side.name] = str(error)
            return None
        tell(f"  {side.name}: {done.rate:.1f} tokens/s")
        row.peak_bytes[side.name] = max(row.peak_bytes.get(side.name, 0), side.peak_bytes)
        return done

    turns = take_turns(rounds, {side.name: (lambda side=side: turn(side)) for side in sides})
    for name, done in turns.items():
        if name not in row.failed:
            row.turns[name] = [one for one in done if one is not None]


def render(row: Row) -> list[str]:
    """Return the lines of a row's table, in Markdown."""
    job = row.job
    sizes = f"batch size {job.batch_size}, sequence {job.shape.sequence_length}"
    if job.mode == "generate":
        sizes = f"batch size {job.batch_size}, {job.new_tokens} tokens after {job.prompt}"
    own = [name for name in OURS if name in row.turns]
    head = ["side", "tokens/s", *(f"{name} / it" for name in own), "tokens/CPU-s"]
    head += [*(f"{name} / it" for name in own), "peak", "what"]
    lines = [f"### {job.workload}, {job.mode} ({sizes})", "", table(head)]
    lines.append(table(["---"] * len(head)))
    for name, turns in row.turns.items():
        rates = [turn.rate for turn in turns]
        cpu_rates = [turn.cpu_rate for turn in turns]
        cells = [name, spread(rates).show(1)]
        for mine in own:
            same = ratios([turn.rate for turn in row.turns[mine]], rates)
            cells.append("" if mine == name else same.show(3))
        cells.append(spread(cpu_rates).show(1))
        for mine in own:
            same = ratios([turn.cpu_rate for turn in row.turns[mine]], cpu_rates)
            cells.append("" if mine == name else same.show(3))
        cells += [f"{row.peak_bytes[name] / 1e9:.2f} GB", row.about[name].note]
        lines.append(table(cells))
    others = [turn.others for turns in row.turns.values() for turn in turns]
    if others:
        lines += [
            "",
            f"Cores that other programs kept busy during a turn: {spread(others).show(2)}.",
        ]
    counts = {about.parameters for about in row.about.values()}
    if len(counts) > 1:
        lines.append(f"NOT THE SAME MODEL: { ({n: a.parameters for n, a in row.about.items()}) }")
    lines += [f"Not measured: {name}: {reason}" for name, reason in row.failed.items()]
    return [*lines, ""]


def table(cells: list[str]) -> str:
    """Return one line of a Markdown table."""
    return "| " + " | ".join(cells) + " |"


def to_json(rows: list[Row], arguments: argparse.Namespace) -> dict[str, Any]:
    """Return everything that was measured, as plain values."""
    return {
        "arguments": {name: str(value) for name, value in vars(arguments).items()},
        "load_average": os.getloadavg(),
        "rows": [asdict(row) for row in rows],
    }


def tell(text: str) -> None:
    """Say on stderr how far it is."""
    print(text, file=sys.stderr, flush=True)


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--size", choices=SIZES, default="small")
    parser.add_argument("--mode", nargs="+", choices=MODES, default=list(MODES))
    parser.add_argument("--only", nargs="+", help="workloads of that size (default: all)")
    parser.add_argument("--peers", nargs="+", choices=[name for name in SIDES if name != OURS[0]])
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--turn-seconds", type=float, default=2.0)
    parser.add_argument("--warmup-steps", type=int, default=6)
    parser.add_argument("--threads", type=int, default=compute_threads())
    parser.add_argument("--batch-size", type=int, default=1)
    parser.add_argument("--prompt", type=int, default=16)
    parser.add_argument("--new-tokens", type=int, default=64)
    parser.add_argument("--gpt-bench", type=Path, help="folder with gpt-bench's package `bench`")
    parser.add_argument(
        "--plain-memory",
        action="store_true",
        help="do not let the sides keep freed memory and huge pages, as the plugin cpu does",
    )
    parser.add_argument("--fresh", action="store_true", help="every turn a process of its own")
    parser.add_argument("--output", type=Path, help="write everything there as JSON")
    return parser.parse_args()


def main() -> None:
    """Measure every row that was asked for."""
    arguments = parse()
    env = environment(arguments.threads, keep_memory=not arguments.plain_memory)
    rows: list[Row] = []
    for workload, (family, sizes) in SIZES[arguments.size].items():
        for mode in arguments.mode:
            if arguments.only and workload not in arguments.only:
                continue
            job = Job(
                workload=workload,
                family=family,
                sizes=sizes,
                mode=mode,
                batch_size=arguments.batch_size,
                warmup_steps=arguments.warmup_steps,
                prompt=arguments.prompt,
                new_tokens=arguments.new_tokens,
                keep_memory=not arguments.plain_memory,
                gpt_bench=str(arguments.gpt_bench.resolve()) if arguments.gpt_bench else None,
            )
            tell(f"{workload}, {mode}, {arguments.threads} threads, load {os.getloadavg()[0]:.1f}")
            row, began = Row(job), time.monotonic()
            fresh = arguments.fresh or arguments.size == "full"
            measure = one_by_one if fresh else together
            with tempfile.TemporaryDirectory() as folder:
                sides = sides_of(job, arguments.peers, env, Path(folder))
                measure(row, sides, arguments.rounds, arguments.turn_seconds)
            tell(f"  {time.monotonic() - began:.0f} s")
            print("\n".join(render(row)), flush=True)
            rows.append(row)
    versions: dict[str, str] = {}
    for row in rows:
        for about in row.about.values():
            versions.update(about.versions)
    print("Versions: " + ", ".join(f"{name} {value}" for name, value in sorted(versions.items())))
    if arguments.output:
        text = json.dumps(to_json(rows, arguments), indent=1)
        arguments.output.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
