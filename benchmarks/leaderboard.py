"""How large is the leaderboard of many bundles, how long does it take, is it quick to use?

python benchmarks/leaderboard.py --bundles 10 100 1000
python benchmarks/leaderboard.py --bundles 1000 --keep board.html     keep the page of the last
python benchmarks/leaderboard.py --bundles 10000 --command

Bundles are made from the committed ones: other names, speeds, verdicts, workloads, device counts.
They would not pass `llmb verify`, and are not asked to: what verifying costs, verified.py tells.
Evidence (3 to 10 MB of a bundle) is left out unless --whole: 1000 whole bundles are 11 GB. With
--command `llmb report` itself is timed, too, twice, as if each bundle had passed before. Sorting
and filtering are timed in Chromium (`pip install playwright`, `apt-get install chromium`), from the
act to the next painted frame; without it only files and seconds are told.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from llmb.cli.leaderboard import commands
from llmb.records.bundle import Bundle
from llmb.records.canonical import pretty_bytes
from llmb.records.run_record import RunRecord
from llmb.report.board import board
from llmb.report.page import page as page_of
from llmb.submission import verified as submission_verified
from llmb.submission.bundles import Shelf, gather
from llmb.submission.clashes import content_of
from llmb.submission.verified import Verified
from tests.builders import with_manifest

SUBMISSIONS = Path(__file__).resolve().parents[1] / "submissions"
WORKLOADS = ("llama-1.4b", "gpt2-1.5b", "nanotron-llama2-7b", "llama-3.1-8b")
PRECISIONS = ("FP32", "FP16", "BF16", "FP8")
VERDICTS = ("CONSISTENT",) * 7 + ("FLAGGED", "UNVERIFIED", "INVALID")
STATUS = {"CONSISTENT": "pass", "FLAGGED": "flag", "UNVERIFIED": "not_observed", "INVALID": "fail"}
ROUNDS = 15
#: Resolves when what an act changed has been laid out and painted.
ACT = """async (act) => {
  const begin = performance.now();
  new Function(act)();
  await new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
  return performance.now() - begin;
}"""
ACTS = {
    "sort by a column": "document.querySelector('th[data-key=mfu] button').click()",
    "filter by verdict": (
        "const s = document.querySelector('[name=verdict]');"
        "s.selectedIndex = (s.selectedIndex + 1) % s.length;"
        "s.dispatchEvent(new Event('input', {bubbles: true}))"
    ),
    "show 100 rows more": (
        "const b = [...document.querySelectorAll('button.more:not([hidden])')][0]; if (b) b.click()"
    ),
    "search for a word": (
        "const s = document.querySelector('[name=search]'); s.value = s.value ? '' : 'box-7';"
        "s.dispatchEvent(new Event('input', {bubbles: true}))"
    ),
    "open a bundle": (
        "location.hash = location.hash.startsWith('#b-') ? '#board' :"
        "document.querySelector('th.system a').hash"
    ),
}


def originals(whole: bool) -> list[dict[str, bytes]]:
    """Return the files of each committed bundle, its large evidence only if ``whole``."""
    found = []
    for manifest in sorted(SUBMISSIONS.rglob("MANIFEST.json")):
        root = manifest.parent
        files = (path for path in sorted(root.rglob("*")) if path.is_file())
        named = {path.relative_to(root).as_posix(): path.read_bytes() for path in files}
        if not whole:
            named = {k: v for k, v in named.items() if not k.startswith("evidence/")}
        found.append(named)
    return found


def varied(data: dict, number: int, draw: random.Random) -> None:
    """Change record ``data`` into that of run ``number``; its figures still follow from it."""
    factor, devices = draw.lognormvariate(3, 1.5), draw.choice((1, 1, 2, 4, 8, 8, 64, 512))
    timing, result = data["timing"], data["result"]
    for one in (timing, *timing["repeats"]):
        for key in ("fence_ns", "fence_worker_ns", "step_ns"):
            one[key] = [round(ns / factor) for ns in one[key]]
        one["start_ns"], one["stop_ns"] = (
            round(one["start_ns"] / factor),
            round(one["stop_ns"] / factor),
        )
    rate = data["workload"]["tokens_per_step"] * timing["timed_steps"] * 1e9
    rate /= timing["stop_ns"] - timing["start_ns"]
    spread = draw.uniform(0.002, 0.05)
    result |= {
        "tokens_per_second": rate,
        "tokens_per_second_per_device": rate / devices,
        "ci95": [rate * (1 - spread), rate * (1 + spread)],
        "mfu": {"value": draw.random(), "peak_flops": 1e15, "peak_source": "made up"},
    }
    if number % 3:
        joules = timing["timed_steps"] * draw.uniform(100, 5000)
        result["energy"] = {"joules": joules, "tokens_per_joule": draw.uniform(0.1, 30)}
        result["energy"] |= {"source": "counter", "scope": "device"}
    data["run_id"] = f"{number:032x}"
    for repeat, one in enumerate(timing["repeats"]):
        one["nonce"] = one.get("nonce") and f"{number:024x}{repeat:08x}"
    data["config"]["parallelism"] = {"dp_replicate": 1, "dp_shard": devices, "tp": 1, "pp": 1}
    data["topology"] |= {"world_size": devices, "parallelism": data["config"]["parallelism"]}
    data["config"]["workload"] = data["workload"]["name"] = draw.choice(WORKLOADS)
    data["precision"]["effective"] = draw.choice(PRECISIONS)
    data["plugin"]["name"] = data["config"]["plugin"] = f"vendor-{draw.randrange(12)}"
    data["plugin"]["strict"] = draw.random() < 0.6
    for device in data["system"]["devices"]:
        device["description"] = f"Accelerator {draw.randrange(40)}"
    data["system"]["cpu"]["model"] = data["system"]["devices"][0]["description"]
    verdict = draw.choice(VERDICTS)
    for finding in data["audit"]["findings"]:
        finding["status"] = "pass" if finding["status"] != "note" else "note"
    next(f for f in data["audit"]["findings"] if f["level"] == "block")["status"] = STATUS[verdict]
    data["audit"]["verdict"] = verdict
    del data["plugin"]["options"], data["config"]["plugin_options"]
    data["plugin"]["options"] = data["config"]["plugin_options"] = {"level": number}


def make(folder: Path, count: int, whole: bool) -> None:
    """Write ``count`` bundles below ``folder``."""
    models, draw = originals(whole), random.Random(7)
    for number in range(count):
        files = dict(models[number % len(models)])
        data = json.loads(files["record.json"])
        varied(data, number, draw)
        record = RunRecord.model_validate(data)
        files |= {"record.json": pretty_bytes(record), "audit.json": pretty_bytes(record.audit)}
        # No two bundles share this text.
        files["model.diff"] = f"-was of run {number}\n".encode() + files["model.diff"]
        del files["MANIFEST.json"]
        place = folder / f"submitter-{number % 37}" / f"box-{number}" / "work" / record.run_id[-8:]
        for name, content in with_manifest(files).items():
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            (place / name).write_bytes(content)


def believed(bundle: Bundle) -> Verified:
    """Return that ``bundle`` passes every check, which what is made up here would not."""
    content = content_of(bundle, bundle.record())
    return Verified(fault=None, signers=frozenset(), content=content)


def believing(paths: list[Path]) -> Shelf:
    """Return the bundles at ``paths`` as if they had passed every check."""
    return gather(paths, believed)


def filled(folder: Path, cache: Path) -> None:
    """Keep for each bundle in ``folder`` that it passed, where `llmb report` keeps it."""
    submission_verified.verified = believed
    gather([folder], submission_verified.Cache(cache / "llmb" / "verified").verified)


def reported(folder: Path, cache: Path, page: Path) -> float:
    """Return how many seconds `llmb report` takes to write ``page``."""
    words = ["report", str(folder), "--output", str(page)]
    environment = {**os.environ, "XDG_CACHE_HOME": str(cache)}
    begin = time.perf_counter()
    subprocess.run([sys.executable, "-P", "-m", "llmb", *words], check=True, env=environment)
    return time.perf_counter() - begin


def rendered(folder: Path, page: Path) -> tuple[float, float, float]:
    """Return seconds and CPU seconds of the command, and the largest memory of any so far in MB."""
    words = [__file__, "--render", str(folder), str(page)]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    begin = time.perf_counter()
    subprocess.run([sys.executable, "-P", *words], check=True)
    seconds = time.perf_counter() - begin
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return seconds, cpu, after.ru_maxrss / 1e3


def used(page: Path) -> Iterator[tuple[str, list[float]]]:
    """Yield what a reader does and how many milliseconds each time took until it was painted."""
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        return
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        return
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium)
        tab = browser.new_page(viewport={"width": 1280, "height": 900})
        loads = []
        for _ in range(3):
            begin = time.perf_counter()
            tab.goto("about:blank")
            tab.goto(page.as_uri(), wait_until="load")
            tab.evaluate(ACT, "")
            loads.append((time.perf_counter() - begin) * 1e3)
        yield "open the page", loads
        for name, act in ACTS.items():
            yield name, [tab.evaluate(ACT, act) for _ in range(ROUNDS)]
            tab.evaluate("document.getElementById('filters').reset()")
            tab.wait_for_timeout(1000)
        browser.close()


def main() -> None:
    """Make bundles, render them, use the page; print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bundles", type=int, nargs="+", default=[10, 100, 1000])
    parser.add_argument("--whole", action="store_true", help="with their evidence")
    parser.add_argument("--render", type=Path, nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--command", action="store_true", help="time llmb report itself, too")
    parser.add_argument("--fill", type=Path, nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--keep", type=Path, help="keep the last page here")
    options = parser.parse_args()
    if options.render:
        folder, page = options.render
        ranked = board(believing([folder]))
        page.write_text(page_of(ranked, commands(ranked)))
        return
    if options.fill:
        filled(*options.fill)
        return
    for count in sorted(options.bundles):
        with tempfile.TemporaryDirectory() as scratch:
            folder, page = Path(scratch) / "submissions", Path(scratch) / "board.html"
            make(folder, count, options.whole)
            size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
            seconds, cpu, memory = rendered(folder, page)
            print(
                f"{count} bundles of {size / 1e6:,.0f} MB: {seconds:.2f} s ({cpu:.2f} of a "
                f"core), {memory:,.0f} MB of memory, a page of {page.stat().st_size / 1e6:.2f} MB",
                flush=True,
            )
            if options.command:
                cache = Path(scratch) / "cache"
                subprocess.run(
                    [sys.executable, "-P", __file__, "--fill", str(folder), str(cache)], check=True
                )
                again = [reported(folder, cache, page) for _ in range(2)]
                print(f"    llmb report, results kept: {again[0]:.1f} s, {again[1]:.1f} s")
            for name, times in used(page):
                middle, worst = statistics.median(times), max(times)
                print(f"    {name:<20} {middle:7.0f} ms median, {worst:7.0f} ms at most")
            if options.keep:
                shutil.copyfile(page, options.keep)


if __name__ == "__main__":
    main()
