"""What is kept of a stage: its files by flat names, its row in the summary, the row as a line."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

#: What is kept of a log: its end.
LOG_BYTES = 300_000
#: What the summary says of a stage that failed.
TAIL_LINES = 50
#: The exit code of `llmb run` whose audit found a blocking rule broken.
INVALID = 5


def outcome(code: int, runs: Sequence[dict]) -> str:
    """Return how a stage ended: an INVALID run has a record and a figure, a failed one has none."""
    if code == INVALID and runs:
        return "INVALID"
    return "done" if code == 0 else "failed"


def files_of(folder: Path, records: Sequence[Path]) -> dict[str, bytes]:
    """Return what is kept of a stage, by flat names: records, audits, its output and its log."""
    kept = {}
    for index, record in enumerate(records, 1):
        name = folder.name if len(records) == 1 else f"{folder.name}.{index}"
        for file in ("record.json", "audit.json"):
            if (record.parent / file).exists():
                kept[f"{name}.{file}"] = (record.parent / file).read_bytes()
    kept[f"{folder.name}.out.txt"] = (folder / "out.txt").read_bytes()[-LOG_BYTES:]
    kept[f"{folder.name}.log.txt"] = log(folder)
    return kept


def log(folder: Path) -> bytes:
    """Return the end of what was written to stderr, and of the logs of run directories."""
    logs = [folder / "err.txt", *sorted(folder.rglob("log.txt"))]
    parts = [f"== {file.relative_to(folder)}\n".encode() + file.read_bytes() for file in logs]
    return b"\n".join(part[-LOG_BYTES:] for part in parts)


def tail(folder: Path) -> list[str]:
    """Return the last lines of what a stage that failed has said."""
    return (folder / "err.txt").read_text(errors="replace").splitlines()[-TAIL_LINES:]


def figures(record: dict) -> dict:
    """Return what a reader wants of a record."""
    result, config = record["result"], record["config"]
    measured = ("tokens_per_second", "ci95", "step_time_s", "fraction_of_ceiling", "mfu")
    findings = record["audit"]["findings"]
    return {
        "class": record["class"],
        "device": record["system"]["devices"][0]["description"],
        "torch": record["system"]["torch"],
        "verdict": record["audit"]["verdict"],
        "broken": [each["id"] for each in findings if each["status"] == "fail"],
        "precision": config["precision"]["name"],
        "batch_size": config["batch_size"],
        "executor": config["executor"],
        "options": config["plugin_options"],
        "parallelism": config["parallelism"],
        **{key: result[key] for key in (*measured, "peak_memory_bytes", "energy")},
        "warnings": record["warnings"],
        "interconnect": record.get("interconnect"),
    }


def lines(rows: Sequence[dict]) -> list[str]:
    """Return the summary as text: a line a stage, and the harness against the plain loop."""
    by_name = {row["stage"]: row for row in rows}
    found = [line(row) for row in rows]
    plain = by_name.get("plain loop", {}).get("output")
    eager = by_name.get("eager 20 steps", {}).get("runs")
    if plain and eager:
        ratio = eager[0]["tokens_per_second"] / plain["tokens_per_second"]
        found.append(f"llmb run over the plain loop, eager, 20 steps each: {ratio:.3f}")
    return found


def line(row: dict) -> str:
    """Return a stage as a line of text."""
    said = [row["outcome"]] if row["outcome"] != "done" or not row["runs"] else []
    if row["outcome"] == "failed":
        said = [f"failed with {row['exit_code']}: {(row['tail'] or [''])[-1]}"]
    if "output" in row:
        said = [f"{row['output']['tokens_per_second']:,.0f} tokens/s"]
    if row["outcome"] in ("done", "INVALID"):
        runs = row["runs"]
        said += [figure(run) for run in runs] if len(runs) <= 2 else [f"{len(runs)} runs"]
    return f"{row['number']:02} {row['stage']:<18} {'; '.join(said)}"


def figure(run: dict) -> str:
    """Return a run as text."""
    share, mfu = run["fraction_of_ceiling"], run["mfu"]
    of = "" if share is None else f", {share:.1%} of the ceiling"
    mfu = f", MFU {mfu['value']:.1%}" if mfu else ""
    broken = f" ({', '.join(run['broken'])} broken)" if run["broken"] else ""
    rate = f"{run['tokens_per_second']:,.0f} tokens/s at batch size {run['batch_size']}"
    return f"{rate}{of}{mfu}{links(run)} [{run['class']}, {run['verdict']}{broken}]"


def links(run: dict) -> str:
    """Return library and bus bandwidth of the largest all-reduce between the ranks, if any."""
    found = run["interconnect"] or {"rates": ()}
    rates = [rate for rate in found["rates"] if rate["kind"] == "all_reduce"]
    if not rates:
        return ""
    most = max(rates, key=lambda rate: rate["bytes"])
    bus, size = most["bus_bytes_per_second"] / 1e9, most["bytes"] / 2**20
    return f", {found['library']} all-reduce {bus:,.1f} GB/s bus at {size:,.0f} MiB"
