"""Prints the report of ``llmb node`` on a terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterator

from rich.console import Console
from rich.table import Table
from rich.text import Text

from llmb.cli.summary import NOT_MEASURED
from llmb.cli.tables import print_fitted
from llmb.cli.text import printable
from llmb.measure.link_words import host_words, size_of
from llmb.records.node_report import NodeDevice, NodeReport, Speed

_TITLES = {
    "doctor": "doctor",
    "ceilings": "ceilings",
    "collectives": "collectives",
    "alone": "each device alone",
    "together": "all side by side",
    "ddp": "ranks of one run (DDP)",
}
#: Columns that may be left out, the least important first.
_LEAST = ("MFU", "of ceiling", "of datasheet", "memory", "products")


def print_report(report: NodeReport, *, wide: bool = False) -> None:
    """Print steps, devices, collectives and the verdict of ``report`` to stdout."""
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 120)
    small = ", debug size: speeds say little" if report.size == "debug" else ""
    head = f"{report.workload}, {report.precision}, batch size {report.batch_size}{small}"
    console.print(Text(f"plugin {report.plugin}, {len(report.devices)} devices, {head}"))
    for table in (_steps(report), _devices(report), _collectives(report)):
        if table.row_count:
            console.print()
            print_fitted(table, _LEAST, wide=wide)
    console.print()
    for line in _lines(report):
        console.print(Text(printable(line)), soft_wrap=True)
    for reason in report.reasons:
        console.print(Text(f"  {printable(reason)}", style="red"), soft_wrap=True)
    style = "bold green" if report.verdict == "yes" else "bold red"
    console.print(Text(f"fit: {report.verdict}", style=style))


def _table(*titles: str, left: int = 1) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for number, title in enumerate(titles):
        table.add_column(
            title,
            justify="left" if number < left else "right",
            overflow="fold",
            no_wrap=bool(title),
        )
    return table


def _steps(report: NodeReport) -> Table:
    table = _table("step", "", "seconds", "")
    table.columns[1].justify = table.columns[3].justify = "left"
    for step in report.steps:
        told = Text(printable("; ".join(step.messages)))
        table.add_row(_TITLES[step.name], step.status, f"{step.seconds:.1f}", told)
    return table


def _devices(report: NodeReport) -> Table:
    titles = ("products", "of datasheet", "memory", "alone", "beside others", "of ceiling", "MFU")
    table = _table("device", "", *titles, left=2)
    for device in report.devices:
        table.add_row(device.name, Text(device.description or ""), *_cells(device))
    return table


def _cells(device: NodeDevice) -> Iterator[str]:
    ceiling = device.ceiling
    if ceiling is None:
        yield from (NOT_MEASURED,) * 3
    else:
        yield f"{ceiling.product_flops_per_second / 1e12:.3g} TFLOP/s"
        yield _share(ceiling.of_datasheet)
        yield f"{ceiling.memory_bytes_per_second / 1e9:.3g} GB/s"
    yield _rate(device.alone)
    yield _rate(device.together)
    yield _share(device.alone.of_ceiling if device.alone else None)
    yield _share(device.alone.of_datasheet if device.alone else None)


def _rate(speed: Speed | None) -> str:
    return NOT_MEASURED if speed is None else f"{speed.tokens_per_second:,.1f} tokens/s"


def _share(value: float | None) -> str:
    return NOT_MEASURED if value is None else f"{value:.1%}"


def _collectives(report: NodeReport) -> Table:
    """Return the time of the smallest size (the cost of a call), and the speeds of larger sizes."""
    least, *sizes = sorted({rate.bytes for rate in report.collectives}) or [0]
    table = _table("bus bandwidth", f"{size_of(least)} takes", *map(size_of, sizes))
    for kind in dict.fromkeys(rate.kind for rate in report.collectives):
        found = {r.bytes: r for r in report.collectives if r.kind == kind}
        took = f"{found[least].seconds * 1e6:,.3g} us" if least in found else ""
        speeds = (found[size].bus_bytes_per_second if size in found else None for size in sizes)
        table.add_row(kind, took, *("" if v is None else f"{v / 1e9:.3g} GB/s" for v in speeds))
    return table


def _lines(report: NodeReport) -> Iterator[str]:
    for name, words in () if report.links is None else host_words(report.links):
        yield f"{name}: {words}"
    if report.ddp is not None:
        share = _share(report.ddp_efficiency)
        yield f"DDP: {_rate(report.ddp)}, {share} of all devices side by side"
    near = report.nearest
    if near is None:
        return
    rate = f"{near.tokens_per_second_per_device:,.1f} tokens/s a device"
    held = f"differs in {', '.join(near.differs)}"
    if near.ratio is not None:
        held = f"this node's have {near.ratio:.1%} of that"
    yield f"nearest submission: {near.path} ({near.workload}, {near.precision}), {rate}; {held}"
