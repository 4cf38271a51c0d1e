"""One call on a machine that is lent: the stages of one device, or of several, most wanted first.

    python official.py OUTPUT                                     one GPU
    python official.py OUTPUT --devices all                       every GPU of the machine
    python official.py OUTPUT --batch-size 96 --only BF16,FP16    another call, for the rest
    python official.py OUTPUT --plugin cpu --device cpu --preset debug   rehearsal on a processor

A stage that would not fit into what is left of the limit is skipped, with a line that says so.
OUTPUT gets summary.json, summary.txt and results.zip after each stage (``keep.py``); everything
else lies in a scratch folder. Exit codes: 0 every stage was tried, or skipped for time; 2 wrong
arguments; 3 a package or a device is missing, and one line names it.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import needs
from keep import Keeper
from rows import figures, files_of, line, lines, outcome, tail

HERE = Path(__file__).resolve().parent
#: Kept back for packaging what the last stage leaves.
RESERVE_S = 20
#: Of each audited run of full size at batch size 32, on an H100 beside 16 cores: honest passes on
#: the GPU and probes on the host's processor (60 s), the steps replayed (25 s), two in float32.
AUDIT_S = 120
#: About how long a stage of ``--preset debug`` takes on a processor.
DEBUG_S = 25
#: A stage of full size is given up after this many times its estimate.
PATIENCE = 3
#: Their plugins compile unless ``-O compile=none``; elsewhere ``--executor inductor`` compiles.
COMPILING = ("cuda", "rocm", "xpu")
#: Commands that take --output-dir.
MAKES_RUNS = ("run", "node")


@dataclass(frozen=True)
class Stage:
    """One command, and about how many seconds it takes on an H100, all told."""

    name: str
    seconds: int
    #: After ``python -m llmb``; a first word that ends in .py is a script of this folder.
    command: tuple[str, ...]

    @property
    def slug(self) -> str:
        return re.sub(r"[^a-z0-9]+", "-", self.name.lower())


def stages(options: argparse.Namespace) -> list[Stage]:
    """Return what is to be done, the most wanted first."""
    found = of_one(options) if options.devices == 1 else of_several(options, options.devices)
    if options.preset is None:
        return found
    return [replace(stage, seconds=min(stage.seconds, DEBUG_S)) for stage in found]


def runs_of(options: argparse.Namespace) -> Callable[..., tuple[str, ...]]:
    """Return what makes the arguments of ``llmb run``."""

    def run(precision: str, batch: int | str, *more: str, compiled: bool = True) -> tuple[str, ...]:
        if options.plugin in COMPILING:
            how = () if compiled else ("-O", "compile=none")
        else:
            how = ("--executor", "inductor") if compiled else ()
        size = ("--batch-size", str(batch))
        chosen = ("run", *where(options), "--precision", precision, *size, *how)
        preset = ("--preset", "debug") if options.preset and "--preset" not in more else ()
        return (*chosen, *preset, *more)

    return run


def where(options: argparse.Namespace) -> tuple[str, ...]:
    device = ("--device", options.device) if options.device else ()
    return ("--plugin", options.plugin, *device)


def of_one(options: argparse.Namespace) -> list[Stage]:
    """Return the stages of one device.

    32-bit values take twice the memory, so TF32 and FP32 run at half the batch size. An official
    window has 5 s at least: 50 steps of batch size 16 take 3.9 s in BF16 on an H100.
    """
    run, batch = runs_of(options), options.batch_size
    half = max(1, batch // 2)
    debug = ("--preset", "debug", "--audit", "full")
    short = ("--timed-steps", "20", "--audit", "off")
    device = ("--device", options.device) if options.device else ()
    preset = ("--preset", "debug") if options.preset else ()
    plain = ("plain.py", "--batch-size", str(batch), "--steps", "20", *device, *preset)
    others = dict.fromkeys(max(1, size) for size in (batch * 3, batch * 2, half))
    return [
        Stage("doctor", 15, ("doctor",)),
        Stage("debug eager", 30, run("BF16", 2, *debug, compiled=False)),
        Stage("debug compiled", 45, run("BF16", 2, *debug)),
        Stage("BF16", 70 + AUDIT_S, run("BF16", batch)),
        Stage("plain loop", 35, plain),
        Stage("eager 20 steps", 45, run("BF16", batch, *short, compiled=False)),
        Stage("FP8", 75 + AUDIT_S, run("FP8", batch)),
        *(Stage(f"BF16 at {size}", 75, run("BF16", size, *short)) for size in others),
        Stage("FP16", 70 + AUDIT_S, run("FP16", batch)),
        Stage("TF32", 80 + AUDIT_S, run("TF32", half)),
        Stage("FP32", 110 + AUDIT_S, run("FP32", half)),
        Stage("search", 175 + AUDIT_S, run("BF16", "auto", compiled=False)),
        Stage("links", 4, ("links.py",)),
    ]


def of_several(options: argparse.Namespace, devices: int) -> list[Stage]:
    """Return the stages of several devices; ``--batch-size`` is that of each."""
    run, batch = runs_of(options), options.batch_size
    node = ("node", *where(options), "--preset", "debug", "--timed-steps", "5", "--seconds", "70")
    ddp = ("--nproc", str(devices))
    fsdp = (*ddp, "--dp-shard", str(devices))
    debug = ("--preset", "debug", "--audit", "full")
    scaling = ("--timed-steps", "20", "--audit", "off", "--scaling", f"1,{devices}")
    return [
        Stage("doctor", 15, ("doctor",)),
        Stage("node", 75, (*node, "--nproc", str(devices), "--json")),
        Stage("debug DDP", 45, run("BF16", 2, *debug, *ddp, compiled=False)),
        Stage("debug FSDP", 45, run("BF16", 2, *debug, *fsdp, compiled=False)),
        Stage("BF16 DDP", 70 + AUDIT_S, run("BF16", batch, *ddp)),
        Stage("BF16 FSDP2", 70 + AUDIT_S, run("BF16", batch, *fsdp, "--zero", "3")),
        Stage("links", 4, ("links.py",)),
        Stage("scaling", 160, run("BF16", batch, *scaling)),
        Stage("BF16 FSDP2 zero 2", 70 + AUDIT_S, run("BF16", batch, *fsdp, "--zero", "2")),
    ]


class Session:
    """The stages of one call, with what is left of its time."""

    def __init__(self, options: argparse.Namespace, keeper: Keeper) -> None:
        self.options, self.keeper = options, keeper
        self.rows: list[dict] = []
        self.ends = options.started + options.limit - RESERVE_S

    def say(self, text: str) -> None:
        print(f"[{time.time() - self.options.started:5.0f} s] {text}", flush=True)

    def do(self, number: int, stage: Stage) -> None:
        """Do one stage, and keep what came of it."""
        left = self.ends - time.time()
        row = {"stage": stage.name, "number": number, "outcome": "running"}
        self.rows.append(row)
        if left < stage.seconds:
            row["outcome"] = f"skipped: {left:.0f} s left, about {stage.seconds} s needed"
            self.summarise()
            self.say(line(row))
            return
        self.summarise()  # a reader of a call that was killed sees which stage it was in
        began = time.time()
        folder = self.options.scratch / f"{number:02}-{stage.slug}"
        # One stage that hangs does not take the time of those after it.
        limit = left if self.options.preset else min(left, PATIENCE * stage.seconds)
        code = self.call(stage, folder, limit)
        row |= {"seconds": round(time.time() - began, 1), "exit_code": code}
        records = sorted(folder.rglob("record.json"))
        files = files_of(folder, records)
        self.tried(lambda: self.keeper.add(files))
        row["runs"] = [figures(json.loads(file.read_bytes())) for file in records]
        row["outcome"] = outcome(code, row["runs"])
        if row["outcome"] == "failed":
            row["tail"] = tail(folder)
        if code == 0 and stage.command[0] == "plain.py":
            row["output"] = json.loads((folder / "out.txt").read_bytes())
        self.summarise()
        self.say(line(row))
        for record in records:
            self.bundle(record.parent, folder)

    def call(self, stage: Stage, folder: Path, limit: float) -> int:
        """Run the command of a stage in ``folder``; 124 where it outran ``limit`` seconds."""
        folder.mkdir()
        name, *rest = stage.command
        command = [str(HERE / name)] if name.endswith(".py") else ["-m", "llmb", name]
        command += rest
        if name in MAKES_RUNS:
            command += ["--output-dir", str(folder / "runs")]
        with (folder / "out.txt").open("wb") as out, (folder / "err.txt").open("wb") as err:
            err.write(f"{' '.join(stage.command)}\n".encode())
            err.flush()
            streams = {"stdin": subprocess.DEVNULL, "stdout": out, "stderr": err}
            process = subprocess.Popen([sys.executable, *command], **streams)
            try:
                return process.wait(limit)
            except subprocess.TimeoutExpired:
                end(process)
                err.write(f"not done after {limit:.0f} s\n".encode())
                return 124

    def bundle(self, run: Path, folder: Path) -> None:
        """Package an official run that is not INVALID; a bundle is verified while it is made."""
        found = self.rows[-1]["runs"]
        if not all(each["class"] == "official" and each["verdict"] != "INVALID" for each in found):
            return
        names = ["--submitter", self.options.submitter, "--system", self.options.system]
        target = folder / "submissions"
        command = [sys.executable, "-m", "llmb", "package-submission", str(run), *names]
        command += ["--output", str(target), "--zip"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        except subprocess.TimeoutExpired:
            self.say("packaging was not done after 60 s")
            return
        if done.returncode != 0:
            self.say(f"packaging: {done.stderr.strip().splitlines()[-1:]}")
            return
        data = next(target.rglob("*.zip")).read_bytes()
        self.tried(lambda: self.keeper.add_bundle(f"{folder.name}.bundle.zip", data))
        self.summarise()

    def summarise(self) -> None:
        """Write the summaries, after the zip: the files of a stage with an outcome are in a zip."""
        self.tried(lambda: self.keeper.add({}))  # what a full disk refused before
        summary = {
            "began_utc": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self.options.started)),
            "seconds": round(time.time() - self.options.started, 1),
            "stages": self.rows,
        }
        self.tried(lambda: self.keeper.summarise(summary, "\n".join(lines(self.rows))))

    def tried(self, write: Callable[[], None]) -> None:
        """Go on where the folder cannot be written: it is tried again after the next stage."""
        try:
            write()
        except OSError as error:
            self.say(f"could not write to {self.options.output}: {error}")


def end(process: subprocess.Popen) -> None:
    """End a command as Ctrl-C does, so that it ends its workers and frees the device."""
    process.send_signal(signal.SIGINT)
    try:
        process.wait(15)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def parsed(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("output", type=Path)
    parser.add_argument("--devices", default="1", help="how many, or all of the machine's")
    parser.add_argument("--plugin", default="cuda")
    parser.add_argument("--device", help="any torch device; left out: the plugin's")
    parser.add_argument(
        "--preset", choices=["debug"], help="every stage at debug sizes: a rehearsal"
    )
    parser.add_argument("--batch-size", type=int, help="of BF16 [32; with --preset debug 2]")
    parser.add_argument("--only", help="names of stages, with commas: for a call of their own")
    parser.add_argument("--without", default="", help="missing packages to do without, with commas")
    parser.add_argument("--limit", type=float, default=585, help="seconds in all")
    parser.add_argument("--started", type=float, default=time.time(), help="when the call began")
    parser.add_argument("--scratch", type=Path, help="for run directories and compiled code")
    parser.add_argument("--submitter", default="llmb")
    parser.add_argument("--system", default="gpu")
    options = parser.parse_args(arguments)
    options.batch_size = options.batch_size or (2 if options.preset else 32)
    if missing := needs.check(options.plugin, options.devices, options.without):
        parser.exit(3, f"official.py: {missing}\n")
    options.devices = count() if options.devices == "all" else int(options.devices)
    if options.devices < 1:
        parser.exit(3, "official.py: torch sees no device here\n")
    if (options.output / "results.zip").exists():
        parser.error(f"{options.output} holds the results of another call: name another folder")
    names = [stage.name for stage in stages(options)]
    if unknown := sorted({*(options.only or names[0]).split(",")} - {*names}):
        parser.error(f"no stage {', '.join(unknown)}: there are {', '.join(names)}")
    return options


def count() -> int:
    """Return how many devices torch sees, 0 where it sees none."""
    code = "import torch; print(torch.accelerator.device_count())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    return int(done.stdout) if done.returncode == 0 else 0


def main(arguments: Sequence[str] | None = None) -> None:
    options = parsed(arguments)
    options.scratch = options.scratch or Path(tempfile.mkdtemp(prefix="llmb-gpu-"))
    options.output.mkdir(parents=True, exist_ok=True)
    options.scratch.mkdir(parents=True, exist_ok=True)
    # Other packages of the environment are not asked for plugins.
    os.environ["LLMB_LOAD_PLUGINS"] = options.plugin
    for compiler in ("TORCHINDUCTOR", "TRITON"):
        os.environ[f"{compiler}_CACHE_DIR"] = str(options.scratch / compiler.lower())
    session = Session(options, Keeper(options.output))
    for number, stage in enumerate(stages(options), 1):
        if options.only is None or stage.name in options.only.split(","):
            try:
                session.do(number, stage)
            except (OSError, ValueError, LookupError) as error:  # the next stage may do better
                session.rows[-1]["outcome"] = f"not kept: {error!r}"
                session.summarise()


if __name__ == "__main__":
    main()
