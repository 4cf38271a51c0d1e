"""Official runs of one GPU in every precision, its best batch size, and the submission of them.

    python official.py OUTPUT [--plugin cuda] [--submitter NAME --system NAME] [--limit SECONDS]
    python official.py OUTPUT --batch-size 64 --only FP16,TF32,FP32     another call, for the rest

Stages come in the order of their worth, and one that would not fit into what is left of the limit
is skipped, with a line that says so. What was finished by then is packaged. Leaves in OUTPUT:
runs/, submissions/ (verified, with zips), summary.json and summary.txt.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

#: Kept back for packaging and verifying what there is.
RESERVE_S = 20
#: Of each audited run (estimated): all weights copied aside and hashed, the same passes with the
#: pristine model on the GPU, and the probes on the host's processor, which is most of it (38 s on
#: four cores: benchmarks/RESULTS.md). The reference of a whole batch is left to the GPU.
AUDIT_S = 45
#: Where the search came to nothing; 23 GB in BF16.
FALLBACK_BATCH = "16"
BF16 = ("--precision", "BF16")


@dataclass(frozen=True)
class Stage:
    """One call of ``llmb run``, and about how long it may take on an H100 (estimated), all told."""

    name: str
    seconds: int
    arguments: tuple[str, ...]
    #: "own": the arguments say it. "half": values of 32 bits take twice the memory.
    batch: str = "best"


def stages(batch: str | None) -> list[Stage]:
    """Return what is to be done, the most wanted first; ``batch`` saves the search.

    torch.compile makes new code for every format and batch size, about 40 s each time. So the
    search, of ten batch sizes, is eager, and so are the first runs in FP16 and TF32: with them
    every precision is there within one call. What is compiled besides FP8 follows where time is
    left, which is in a call of its own: ``--batch-size N --only BF16,FP16,TF32,FP32``.
    """
    eager = ("-O", "compile=none")
    search = Stage("BF16 eager best", 175 + AUDIT_S, (*BF16, *eager, "--batch-size", "auto"), "own")
    return [
        Stage("BF16 eager", 50 + AUDIT_S, (*BF16, *eager)) if batch else search,
        Stage("FP8", 100 + AUDIT_S, ("--precision", "FP8")),
        Stage("FP16 eager", 50 + AUDIT_S, ("--precision", "FP16", *eager)),
        Stage("TF32 eager", 50 + AUDIT_S, ("--precision", "TF32", *eager), "half"),
        Stage("BF16", 95 + AUDIT_S, BF16),
        Stage("FP16", 95 + AUDIT_S, ("--precision", "FP16")),
        Stage("TF32", 105 + AUDIT_S, ("--precision", "TF32"), "half"),
        Stage("FP32", 150 + AUDIT_S, ("--precision", "FP32"), "half"),
    ]


def half(batch: str) -> str:
    """Return the power of two that is at most half of ``batch``, at least 1."""
    return str(1 << max(0, int(batch).bit_length() - 2))


class Session:
    """The stages of one call, with what is left of its time."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.output = options.output
        self.rows: list[dict[str, object]] = []
        self.batch: str | None = options.batch_size

    def left_s(self) -> float:
        return self.options.started + self.options.limit - RESERVE_S - time.time()

    def say(self, text: str) -> None:
        print(f"[{self.options.limit - RESERVE_S - self.left_s():5.0f} s] {text}", flush=True)

    def run(self, stage: Stage) -> None:
        """Do one stage, and note what came of it."""
        if self.left_s() < stage.seconds:
            self.note(stage, f"skipped: {self.left_s():.0f} s left, about {stage.seconds} s needed")
            return
        self.say(stage.name)
        best = self.batch or FALLBACK_BATCH
        batch = {"own": (), "half": ("--batch-size", half(best)), "best": ("--batch-size", best)}
        command = ["run", "--plugin", self.options.plugin, *stage.arguments, *batch[stage.batch]]
        done = llmb(*command, "--output-dir", str(self.output / "runs"), "--json", "--quiet",
                    limit=self.left_s())  # fmt: skip
        if done.returncode != 0:
            self.note(stage, f"failed with {done.returncode}: {last_line(done.stderr)}")
            return
        record = json.loads(done.stdout)
        if "auto" in stage.arguments:
            self.batch = str(record["config"]["batch_size"])
        self.rows.append(row(stage, record))
        self.say(line(self.rows[-1]))

    def note(self, stage: Stage, text: str) -> None:
        self.rows.append({"stage": stage.name, "outcome": text})
        self.say(f"{stage.name}: {text}")

    def package(self) -> None:
        """Make and verify the submission of all official runs, and write the summary."""
        folders = [str(r["folder"]) for r in self.rows if r.get("class") == "official"]
        if folders:
            names = ["--submitter", self.options.submitter, "--system", self.options.system]
            where = ["--output", str(self.output / "submissions"), "--zip"]
            done = llmb("package-submission", *folders, *names, *where, limit=60)
            self.say(done.stdout.strip() or last_line(done.stderr))
            done = llmb("verify", "--all", str(self.output / "submissions"), limit=60)
            self.say(last_line(done.stdout) or last_line(done.stderr))
        (self.output / "summary.json").write_text(json.dumps(self.rows, indent=1) + "\n")
        text = "\n".join(map(line, self.rows)) + "\n"
        (self.output / "summary.txt").write_text(text)
        print(text, end="")


def row(stage: Stage, record: dict) -> dict[str, object]:
    """Return what a reader wants of a record."""
    result, config = record["result"], record["config"]
    run = next(p for p in sorted(RUNS.iterdir()) if holds(p, record["run_id"]))
    keys = (
        "tokens_per_second",
        "ci95",
        "fraction_of_ceiling",
        "mfu",
        "peak_memory_bytes",
        "energy",
    )
    return {
        "stage": stage.name,
        "class": record["class"],
        "folder": str(run),
        "precision": config["precision"]["name"],
        "batch_size": config["batch_size"],
        "options": config["plugin_options"],
        **{key: result[key] for key in keys},
        "warnings": record["warnings"],
        "verdict": record["audit"]["verdict"],
    }


def holds(folder: Path, run_id: str) -> bool:
    file = folder / "record.json"
    return file.exists() and json.loads(file.read_bytes())["run_id"] == run_id


def line(row: dict) -> str:
    """Return a row as a line of text."""
    if "outcome" in row:
        return f"{row['stage']:<18} {row['outcome']}"
    share = row["fraction_of_ceiling"]
    of = "ceiling not measured" if share is None else f"{share:.1%} of the ceiling"
    mfu = f", MFU {row['mfu']['value']:.1%}" if row["mfu"] else ""
    rate = f"{row['tokens_per_second']:,.0f} tokens/s"
    return f"{row['stage']:<18} {rate} at batch size {row['batch_size']}, {of}{mfu}"


def llmb(*arguments: str, limit: float) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "llmb", *arguments]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=limit, check=False)
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(command, 124, "", f"not done after {limit:.0f} s")


def last_line(text: str) -> str:
    return (text.strip().splitlines() or [""])[-1]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("output", type=Path)
    parser.add_argument("--plugin", default="cuda")
    parser.add_argument("--submitter", default="llmb")
    parser.add_argument("--system", default="gpu")
    parser.add_argument("--batch-size", help="use this one, and save the search")
    parser.add_argument("--only", help="names of stages, with commas: for a call of their own")
    parser.add_argument("--limit", type=float, default=585, help="seconds in all")
    parser.add_argument("--started", type=float, default=time.time(), help="when the call began")
    options = parser.parse_args()
    RUNS = options.output / "runs"
    RUNS.mkdir(parents=True, exist_ok=True)
    print(llmb("plugin", "list", options.plugin, limit=120).stdout)
    session = Session(options)
    try:
        for stage in stages(options.batch_size):
            if options.only is None or stage.name in options.only.split(","):
                session.run(stage)
    finally:
        session.package()
