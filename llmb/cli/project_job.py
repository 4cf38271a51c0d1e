"""``llmb project job`` and ``search``: a step's time, part by part, on devices not at hand."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from llmb.cli.project_options import (
    AMOUNT,
    COUNT,
    as_json,
    printed,
    workload_of_name,
    workload_option,
)
from llmb.errors import UsageError

if TYPE_CHECKING:
    from rich.console import Console

    from llmb.projection.hardware_files import Hardware
    from llmb.projection.job import Job
    from llmb.projection.jobs import JobRequest
    from llmb.projection.projected import Basis, Projection
    from llmb.projection.step_time import ProjectedStep
    from llmb.workloads import Workload

_SHOWN = 8
F = TypeVar("F", bound=Callable[..., Any])


def _of_both(function: F) -> F:
    """Add the options of both ``job`` and ``search``."""
    for option in reversed(
        (
            workload_option,
            click.option(
                "--hardware",
                required=True,
                metavar="NAME|FILE.json",
                help="Hardware, such as h100.",
            ),
            click.option(
                "--from",
                "record",
                type=click.Path(path_type=Path),
                metavar="RECORD",
                help="Run on the hardware, to calibrate the constants.",
            ),
            click.option(
                "--global-batch", type=COUNT, help="Sequences of a step [default: the original's]."
            ),
            click.option("--world-size", type=COUNT, help="Devices [default: the original's]."),
            click.option(
                "--stored",
                type=click.Choice(["llmb", "llmb-mixed", "megatron"]),
                default="llmb",
                show_default=True,
                help="System whose stored tensors are counted: llmb's loop in BF16, the loop with "
                "--mixed-precision, or Megatron's mixed precision with fused kernels.",
            ),
            click.option(
                "--tokens", type=AMOUNT, help="Tokens of the training, for node-hours and days."
            ),
            click.option(
                "--figure",
                type=click.Path(dir_okay=False, path_type=Path),
                help="Draw the parts and the scaling of a step (.png, .svg).",
            ),
            as_json,
        )
    ):
        function = option(function)
    return function


@click.command("job", short_help="Project a step's time, memory and energy on described hardware.")
@_of_both
@click.option("--tp", type=COUNT, help="Ranks that share a layer [default: the original's].")
@click.option("--pp", type=COUNT, help="Stages of layers [default: the original's].")
@click.option("--micro-batch-size", type=COUNT, help="Sequences of a micro-batch, on a replica.")
@click.option("--virtual-stages", type=COUNT, help="Stages of each rank (interleaved) [1].")
@click.option("--zero", type=click.IntRange(0, 3), help="ZeRO stage [default: 0].")
@click.option("--recompute", type=click.Choice(["none", "attention", "full"]), help="[none]")
@click.option("--sequence-parallel", is_flag=True, help="With --tp.")
@click.option("--unfused", is_flag=True, help="Elementwise work is not compiled.")
@click.option("--overlap-tp", is_flag=True, help="Sums run beside products.")
def job(**flags: Any) -> None:
    """Project the time of a step, part by part, with memory, energy and the expected error.

    \b
    llmb project job --workload alcf-1t --hardware aurora --recompute full --zero 1
    llmb project job --workload llama-3.1-8b --hardware mine.json --world-size 64
                     --global-batch 512 --tokens 1e12 --figure step.png
    """
    from llmb.projection.jobs import job_of

    workload = workload_of_name(flags["workload"])
    with printed(flags) as result:
        hardware, by = _hardware(flags)
        _describe(result, workload, job_of(workload, _asked(flags)), hardware, by, flags)


@click.command("search", short_help="Find the fastest layout within the memory.")
@_of_both
def search_command(**flags: Any) -> None:
    """Find the fastest layout (tp, pp, dp, recomputation), and show why other layouts are slower.

    \b
    llmb project search --workload alcf-1t --hardware h100 --world-size 12288 --global-batch 6144
    """
    workload = workload_of_name(flags["workload"])
    with printed(flags) as result:
        hardware, by = _hardware(flags)
        best, found = _search(workload, _asked(flags), hardware, by)
        _describe(result, workload, best, hardware, by, flags)
        result["search"] = found


def _hardware(flags: Mapping[str, Any]) -> tuple[Hardware, Basis]:
    from llmb.projection.hardware_files import load
    from llmb.projection.projected import basis
    from llmb.records.bundle import read_record

    hardware, path = load(flags["hardware"]), flags["record"]
    record = None if path is None else read_record(path)
    return hardware, basis(hardware, record, str(path))


def _asked(flags: Mapping[str, Any]) -> JobRequest:
    from llmb.projection.jobs import JobRequest

    return JobRequest(
        world_size=flags["world_size"],
        global_batch=flags["global_batch"],
        tp=flags.get("tp"),
        pp=flags.get("pp"),
        micro_batch=flags.get("micro_batch_size"),
        virtual_stages=flags.get("virtual_stages") or 1,
        zero=flags.get("zero") or 0,
        recompute=flags.get("recompute") or "none",
        sequence_parallel=bool(flags.get("sequence_parallel")),
        fused_elementwise=not flags.get("unfused"),
        overlapped_tp=bool(flags.get("overlap_tp")),
        stored=flags["stored"],
    )


def _describe(
    result: dict[str, Any],
    workload: Workload,
    job: Job,
    hardware: Hardware,
    by: Basis,
    flags: Mapping[str, Any],
) -> None:
    """Add the projection of ``job`` to ``result``, and draw the figure of ``--figure``."""
    from llmb.projection.projected import project

    found = project(workload, job, hardware, by)
    result |= _described(found, flags["tokens"])
    result["notes"] += by.notes
    if flags["figure"] is not None:
        _draw(flags["figure"], found)
        result["notes"].append(f"figure: {flags['figure']}")


def _described(found: Projection, tokens: float | None) -> dict[str, Any]:
    job, memory = found.job, found.memory
    return {
        "workload": found.workload.name,
        "hardware": found.hardware.model_dump(),
        "layout": _layout(job),
        "sizes": {"L": job.model.layers, "d": job.model.hidden, "s": job.model.sequence},
        "global_batch_size": found.step.sequences,
        "world_size": found.step.world_size,
        "fits": found.fits,
        "memory": {**memory.parts(), "total": memory.total},
        "memory_counts": job.stored.description,
        "parts": found.time.parts(),
        "constants": asdict(found.basis.constants),
        "expected_error_percent": found.basis.expected_error_percent,
        "figures": [metric.model_dump() for metric in found.figures(tokens)],
    }


def _search(
    workload: Workload, asked: JobRequest, hardware: Hardware, by: Basis
) -> tuple[Job, dict[str, Any]]:
    from llmb.projection.job import Model
    from llmb.projection.jobs import devices_of, sequences_of
    from llmb.projection.search import search
    from llmb.workloads.memory import RECIPES

    devices, sequences = devices_of(workload, asked), sequences_of(workload, asked)
    found = search(
        Model.of(workload.shape),
        devices,
        sequences,
        hardware,
        by.constants,
        stored=RECIPES[asked.stored],
    )
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
    """Return the parts in which ``time`` is longer, the largest difference first."""
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


def show(result: Mapping[str, Any], console: Console) -> None:
    """Print layout, parts, memory and, of a search, the layouts."""
    from rich.table import Table
    from rich.text import Text

    hardware = result["hardware"]
    if result["fits"] == "no":
        needed, there = result["memory"]["total"] / 1e9, hardware["memory_bytes"] / 1e9
        told = (
            f"does not fit: the fullest rank needs {needed:,.1f} GB, a device has {there:,.0f} GB"
        )
        console.print(Text(told, "bold red"))
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
    console.print(Text(f"memory counts {result['memory_counts']}", "dim"))
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


def _draw(path: Path, found: Projection) -> None:
    from llmb.projection.figure import FORMATS, draw

    kind, job, hardware = path.suffix.removeprefix("."), found.job, found.hardware
    if kind not in FORMATS:
        raise UsageError(f"--figure {path}: its name must end in .{' or .'.join(FORMATS)}")
    scaled = [replace(job, dp=job.dp * factor) for factor in (1, 2, 4, 8, 16)]
    if hardware.network_bytes_per_second is None:
        scaled = [one for one in scaled if one.devices <= hardware.devices_per_node]
    try:
        path.write_bytes(draw(found, scaled, kind))
    except OSError as error:
        raise UsageError(f"--figure {path}: cannot be written: {error.strerror}") from None
