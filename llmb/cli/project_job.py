"""``llmb project --hardware``: a step's time, part by part, on devices that need not be there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llmb.errors import UsageError

if TYPE_CHECKING:
    from rich.console import Console

    from llmb.projection.hardware_files import Hardware
    from llmb.projection.job import Job
    from llmb.projection.jobs import JobRequest
    from llmb.projection.step_time import Constants, ProjectedStep
    from llmb.workloads import Workload

#: What a search decides, and is not told.
_SEARCHED = ("tp", "pp", "micro_batch_size", "virtual_stages", "zero", "recompute")
_SHOWN = 8


def project(
    workload: Workload, flags: Mapping[str, Any], record: Path | None
) -> tuple[dict[str, Any], list[str]]:
    """Return figures, parts and memory of the job of ``flags``, and what to know of them.

    Raises:
        UsageError: the job cannot be, or is not said.
    """
    from llmb.projection import calibration
    from llmb.projection.hardware_files import load
    from llmb.projection.jobs import job_of

    hardware, asked = load(flags["hardware"]), _asked(flags)
    constants, receipt = calibration.constants(), calibration.receipt()
    error = receipt.expected_error_percent
    notes = []
    if record is not None:
        constants, said = _calibrated(record, hardware, constants, receipt.belief(hardware.name))
        error = receipt.after_one_row_percent
        notes.append(said)
    notes.append(
        f"expected error {error:g} %: of {receipt.rows} published rows, tables left out of the "
        f"fit; worst row {receipt.worst_row}, {receipt.worst_error_percent:+g} %"
    )
    if hardware.name not in receipt.devices:
        notes.append(
            f"no published row is of {hardware.name}: expect more, and calibrate with --from RECORD"
        )
    result: dict[str, Any] = {}
    if flags["search"]:
        job, result["search"] = _search(workload, asked, flags, hardware, constants)
    else:
        job = job_of(workload, asked)
    result = {**_described(workload, job, hardware, constants, flags["tokens"]), **result}
    result["expected_error_percent"] = error
    if flags["figure"] is not None:
        _draw(flags["figure"], workload.name, job, hardware, constants)
        notes.append(f"figure: {flags['figure']}")
    return result, notes


def _asked(flags: Mapping[str, Any]) -> JobRequest:
    from llmb.projection.jobs import JobRequest

    return JobRequest(
        world_size=flags["world_size"],
        global_batch=flags["global_batch"],
        tp=flags["tp"],
        pp=flags["pp"],
        micro_batch=flags["micro_batch_size"],
        virtual_stages=flags["virtual_stages"] or 1,
        zero=flags["zero"] or 0,
        recompute=flags["recompute"] or "none",
        sequence_parallel=bool(flags["sequence_parallel"]),
        fused_elementwise=not flags["unfused"],
        overlapped_tp=bool(flags["overlap_tp"]),
    )


def _calibrated(
    path: Path, hardware: Hardware, prior: Constants, believed: float
) -> tuple[Constants, str]:
    from llmb.projection.calibration import calibrated
    from llmb.projection.jobs import measured_job
    from llmb.projection.step import measured_step
    from llmb.projection.step_time import step_time
    from llmb.records.bundle import read_record

    record = read_record(path)
    workload, step = measured_step(record)
    job = measured_job(workload, record)

    def rate(constants: Constants) -> float:
        return job.tokens / step_time(job, hardware, constants).total

    try:
        found = calibrated(prior, step.tokens_per_second, rate, believed)
    except UsageError as error:
        raise UsageError(f"--from {path}: {error}") from None
    said = (
        f"calibrated by {path}: {step.tokens_per_second:,.4g} tokens/s measured, "
        f"{rate(prior):,.4g} projected without it, {rate(found):,.4g} with {believed:.0%} of the "
        "difference believed"
    )
    return found, said


def _search(
    workload: Workload,
    asked: JobRequest,
    flags: Mapping[str, Any],
    hardware: Hardware,
    constants: Constants,
) -> tuple[Job, dict[str, Any]]:
    from llmb.projection.job import Model
    from llmb.projection.jobs import devices_of, sequences_of
    from llmb.projection.search import search

    given = next((name for name in _SEARCHED if flags[name] is not None), None)
    if given is not None:
        raise UsageError(f"--{given.replace('_', '-')} is what --search finds: leave one of them")
    devices, sequences = devices_of(workload, asked), sequences_of(workload, asked)
    found = search(Model.of(workload.shape), devices, sequences, hardware, constants)
    best = found.best[0]
    others = [one for one in found.by_mesh if one not in found.best]
    rows = [
        {
            **_layout(one.job),
            "step_time_s": one.time.total,
            "memory_bytes": one.memory.total,
            "slower_percent": 100 * (one.time.total / best.time.total - 1),
            "why": "" if one is best else _why(one.time, best.time),
        }
        for one in (*found.best[:_SHOWN], *others[:_SHOWN])
    ]
    return best.job, {"tried": found.tried, "left_out": found.left_out, "layouts": rows}


def _why(time: ProjectedStep, best: ProjectedStep) -> str:
    """Return in which parts ``time`` is longer, the one with the largest difference first."""
    more = {name: value - best.parts()[name] for name, value in time.parts().items()}
    worst = sorted(more, key=lambda name: -more[name])[:2]
    shown = (f"{name.replace('_', ' ')} +{more[name]:.3g} s" for name in worst if more[name] > 0)
    return ", ".join(shown)


def _layout(job: Job) -> dict[str, Any]:
    return {
        "tp": job.tp,
        "pp": job.pp,
        "dp": job.dp,
        "micro_batch_size": job.micro_batch,
        "micro_batches": job.micro_batches,
        "virtual_stages": job.virtual_stages,
        "zero": job.zero,
        "recompute": job.recompute,
        "sequence_parallel": job.sequence_parallel,
    }


def _described(
    workload: Workload,
    job: Job,
    hardware: Hardware,
    constants: Constants,
    tokens: float | None,
) -> dict[str, Any]:
    from llmb.measure.step_figures import StepFigures
    from llmb.projection.memory import peak_memory
    from llmb.projection.step import figures
    from llmb.projection.step_time import step_time

    time, memory = step_time(job, hardware, constants), peak_memory(job)
    step = StepFigures(time.total, round(job.sequences), job.tokens, job.devices)
    shown = list(figures(workload, step, hardware.peak_flops))
    return {
        "workload": workload.name,
        "hardware": hardware.model_dump(),
        "layout": _layout(job),
        "sizes": {"L": job.model.layers, "d": job.model.hidden, "s": job.model.sequence},
        "global_batch_size": step.sequences,
        "world_size": step.world_size,
        "parts": time.parts(),
        "memory": {**memory.parts(), "total": memory.total},
        "fits": memory.fits(hardware.memory_bytes),
        "constants": asdict(constants),
        "figures": [
            *(metric.model_dump() for metric in shown),
            *_hfu(shown, time),
            *_cost(step, hardware, tokens),
        ],
    }


def _hfu(shown: list[Any], time: ProjectedStep) -> list[dict[str, Any]]:
    """Return the share of the peak with what is computed twice."""
    mfu = next((m.value for m in shown if m.name == "MFU by gemm_full"), None)
    if mfu is None:
        return []
    once = time.products + time.attention
    value = mfu * (once + time.recompute) / once
    return [_figure("HFU", value, "%", "MFU by gemm_full x (once + recomputed) / once, by time")]


def _cost(step: Any, hardware: Hardware, tokens: float | None) -> list[dict[str, Any]]:
    nodes = -(-step.world_size // hardware.devices_per_node)
    found = []
    if hardware.power_w is not None:
        joules = hardware.power_w * step.world_size / step.tokens_per_second
        formula = "devices x rated power / tokens/s; without hosts and network"
        found.append(_figure("joules_per_token", joules, "J", formula))
    if tokens is not None:
        days = tokens / step.tokens_per_second / 86400
        found.append(_figure("days", days, "d", f"{tokens:g} tokens / tokens/s / 86400"))
        found.append(
            _figure("node_hours", 24 * days * nodes, "node h", f"days x 24 x {nodes:,} nodes")
        )
    return found


def _figure(name: str, value: float, unit: str, formula: str) -> dict[str, Any]:
    return {"name": name, "value": value, "unit": unit, "formula": formula}


def show(result: Mapping[str, Any], console: Console) -> None:
    """Print layout, parts, memory and, of a search, the layouts."""
    from rich.table import Table
    from rich.text import Text

    hardware = result["hardware"]
    console.print(Text(f"on {hardware['name']}: {hardware['description']}", "bold"))
    words = (f"{name.replace('_', ' ')} {value}" for name, value in result["layout"].items())
    console.print(Text(", ".join(words)))
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for title in ("part", "seconds", "share", "memory of a rank", "GB"):
        table.add_column(title, justify="right" if title in ("seconds", "share", "GB") else "left")
    total = sum(result["parts"].values())
    parts = sorted(result["parts"].items(), key=lambda part: -part[1])
    memory = sorted(result["memory"].items(), key=lambda part: (part[0] == "total", -part[1]))
    limit = hardware["memory_bytes"] / 1e9
    held = [(name, f"{value / 1e9:,.1f}") for name, value in memory]
    held.append((f"fits into {limit:,.0f} GB", result["fits"]))
    for at in range(max(len(parts), len(held))):
        name, seconds = parts[at] if at < len(parts) else ("", None)
        row = [name.replace("_", " "), "", ""]
        if seconds is not None:
            row[1:] = [f"{seconds:.4g}", f"{100 * seconds / total:.1f} %"]
        table.add_row(*row, *(held[at] if at < len(held) else ("", "")))
    console.print(table)
    if "search" in result:
        _show_search(result["search"], console)


def _show_search(search: Mapping[str, Any], console: Console) -> None:
    from rich.table import Table
    from rich.text import Text

    left_out = "; ".join(f"{count:,} {why}" for why, count in search["left_out"].items())
    console.print(Text(f"{search['tried']:,} layouts tried; {left_out}", "dim"))
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    names = ("tp", "pp", "dp", "micro_batch_size", "virtual_stages", "zero", "recompute")
    titles = ("tp", "pp", "dp", "micro", "virtual", "zero", "recompute", "step s", "GB", "slower")
    for title in (*titles, "why"):
        table.add_column(title, justify="left" if title in ("recompute", "why") else "right")
    for one in search["layouts"]:
        table.add_row(
            *(str(one[name]) for name in names),
            f"{one['step_time_s']:.4g}",
            f"{one['memory_bytes'] / 1e9:,.1f}",
            f"{one['slower_percent']:.1f} %",
            one["why"],
        )
    console.print(table)


def _draw(path: Path, name: str, job: Job, hardware: Hardware, constants: Constants) -> None:
    from llmb.projection.figure import FORMATS, draw

    kind = path.suffix.removeprefix(".")
    if kind not in FORMATS:
        raise UsageError(f"--figure {path}: its name must end in .{' or .'.join(FORMATS)}")
    scaled = [replace(job, dp=job.dp * factor) for factor in (1, 2, 4, 8, 16)]
    if hardware.network_bytes_per_second is None:
        scaled = [one for one in scaled if one.devices <= hardware.devices_per_node]
    try:
        path.write_bytes(draw(name, scaled, hardware, constants, kind))
    except OSError as error:
        raise UsageError(f"--figure {path}: cannot be written: {error.strerror}") from None
