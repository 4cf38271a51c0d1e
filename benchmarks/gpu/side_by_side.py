"""Many audited runs on one GPU, several at once: which rules accuse each of them, and how far.

    python side_by_side.py OUTPUT paths [--at-once 5]     every way to train, at debug sizes
    python side_by_side.py OUTPUT corpus [--at-once 2]    plugins of tests/cheats at the true width
    python side_by_side.py OUTPUT paths --only fp8,cuda-graphs

Verdicts count here, and times do not: runs disturb each other. OUTPUT gets runs.jsonl, one line a
run as soon as it has ended. In the corpus each run is llama-1.4b whole, ten timed steps of four
sequences. Rules T1 and T2 may say that the host is busy; every other rule holds.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tests.cheats import runner  # noqa: E402

#: Seconds after which a command is given up.
PATIENCE_S = 300
#: Lines of the log of a command that left no record.
TAIL_LINES = 25
EAGER = ("-O", "compile=none")
DEBUG = ("--plugin=cuda", "--preset=debug", "--audit=full", "--batch-size=2")
GENERATE = ("--mode=generate", "--prompt-length=6", "--new-tokens=8", "--timed-steps=3")
#: Arguments of ``llmb run``, by a name of the way. A first word that begins without a dash is
#: another command of llmb.
PATHS: dict[str, tuple[str, ...]] = {
    "fp8": ("--precision=FP8",),
    "fp8-rowwise": ("--precision=FP8", "-O", "fp8=rowwise"),
    "fp16": ("--precision=FP16", *EAGER),
    "tf32": ("--precision=TF32", *EAGER),
    "fp32": ("--precision=FP32", *EAGER),
    "tf32-compiled": ("--precision=TF32",),
    "autocast": ("--precision=BF16", "--mixed-precision", *EAGER),
    "cuda-graphs": ("--precision=BF16", "-O", "compile=reduce-overhead"),
    "inductor": ("--precision=BF16", "--executor=inductor", *EAGER),
    "attention-math": ("--precision=BF16", "-O", "attention=math", *EAGER),
    "attention-flash": ("--precision=BF16", "-O", "attention=flash", *EAGER),
    "accumulate": ("--precision=BF16", "--accumulate=2", "--micro-batch-size=1", *EAGER),
    "checkpointing": ("--precision=BF16", "--sac-freq=1/2", *EAGER),
    "dynamic": ("--precision=BF16", "--dynamic"),
    "gpt2": ("--workload=gpt2-125m", "--precision=BF16"),
    "grouped": ("--workload=llama-3.1-8b-proxy", "--precision=BF16", *EAGER),
    "bert": ("--workload=nemo-bert-base", "--precision=FP16", *EAGER),
    "alcf": ("--workload=alcf-1t-readme", "--precision=BF16", *EAGER),
    "forward": ("--workload=litgpt-forward", "--precision=BF16"),
    "generate": ("--workload=litgpt-generation", "--precision=BF16", *EAGER, *GENERATE),
    "generic": ("--plugin=generic", "--precision=BF16"),
    "plugin-check": ("plugin", "check", "cuda", "-O", "compile=none"),
}
WIDE = ("--batch-size=4", "--timed-steps=10", "--audit=full", "--precision=BF16")
#: Honest ones first: to accuse one of them is worse than to miss a cheat.
CORPUS = (
    "honest_explicit_attention",
    "softmax_expanded",
    "copies_frozen",
    "fp8_head_unless_probed",
    "honest_fused",
)


@dataclass(frozen=True)
class Case:
    """A command, and the folder of the plugin that it needs."""

    name: str
    command: tuple[str, ...]
    plugin: Path | None = None


def cases(kind: str, output: Path, only: set[str]) -> list[Case]:
    """Return what is to be run: ``paths`` or ``corpus``, or those named in ``only``."""
    found = []
    for name in PATHS if kind == "paths" else [*CORPUS, *sorted(only - {*CORPUS})]:
        if only and name not in only:
            continue
        plugin = None
        if kind == "corpus":
            plugin = runner.install(
                output / name / "plugins", name, native=True, vendor="llmb_cuda.plugin"
            )
            command = ("run", f"--plugin={runner.NAME}", *WIDE)
        elif PATHS[name][0].startswith("-"):
            command = ("run", *DEBUG, *PATHS[name])
        else:
            command = PATHS[name]
        found.append(Case(name, command, plugin))
    return found


def done(output: Path, case: Case, threads: int) -> dict:
    """Run ``case``; return its verdict, and what each rule has measured."""
    began = time.time()
    folder = output / case.name
    folder.mkdir(parents=True, exist_ok=True)
    paths = [str(case.plugin)] if case.plugin else []
    paths.append(os.environ.get("PYTHONPATH", ""))
    loaded = runner.NAME if case.plugin else "cuda"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths), "LLMB_LOAD_PLUGINS": loaded}
    environment["OMP_NUM_THREADS"] = str(threads)
    command = [sys.executable, "-m", "llmb", *case.command]
    if case.command[0] == "run":
        command += ["--quiet", "--output-dir", str(folder / "runs")]
    with (folder / "log.txt").open("wb") as log:
        streams = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log}
        try:
            code = subprocess.call(command, **streams, timeout=PATIENCE_S, env=environment)
        except subprocess.TimeoutExpired:
            code = 124
    row = {"case": case.name, "command": case.command, "code": code}
    row["seconds"] = round(time.time() - began, 1)
    for record in folder.glob("runs/*/record.json"):
        audit = json.loads(record.read_bytes())["audit"]
        row |= {"verdict": audit["verdict"], "findings": told(audit["findings"])}
    if "verdict" not in row:
        log_lines = (folder / "log.txt").read_text(errors="replace").splitlines()
        row["log"] = log_lines[-TAIL_LINES:]
    return row


def told(findings: list[dict]) -> list[dict]:
    """Return of each finding that was judged its rule, status, message and figures."""
    keys = ("id", "status", "message", "measured", "honest")
    judged = [each for each in findings if each["status"] != "not_applicable"]
    return [{key: each[key] for key in keys if each[key]} for each in judged]


def lines(row: dict) -> list[str]:
    """Return a row as text: verdict, figures of E1 and L1, and what accuses the run."""
    head = f"{row['case']}: {row.get('verdict', 'no record')}, exit code {row['code']}"
    found = [f"{head}, {row['seconds']} s"]
    for each in row.get("findings", ()):
        accuses = each["status"] in ("fail", "flag", "not_observed")
        if accuses or each["id"] in ("E1", "L1"):
            text = each["message"] if accuses else each.get("measured", "")
            found.append(f"    {each['id']} {each['status']}: {text[:300]}")
    return found + [f"    {line}" for line in row.get("log", ())]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("output", type=Path)
    parser.add_argument("kind", choices=["paths", "corpus"])
    parser.add_argument("--only", default="", help="names, with commas")
    parser.add_argument("--at-once", type=int, help="runs side by side [paths: 5, corpus: 2]")
    options = parser.parse_args()
    at_once = options.at_once or (5 if options.kind == "paths" else 2)
    threads = max(1, (os.cpu_count() or 1) // at_once)
    options.output.mkdir(parents=True, exist_ok=True)
    todo = cases(options.kind, options.output, {*filter(None, options.only.split(","))})
    with ThreadPoolExecutor(at_once) as pool, (options.output / "runs.jsonl").open("a") as file:
        runs = [pool.submit(done, options.output, case, threads) for case in todo]
        for run in as_completed(runs):
            row = run.result()
            file.write(json.dumps(row) + "\n")
            file.flush()
            print("\n".join(lines(row)), flush=True)


if __name__ == "__main__":
    main()
