"""The page of a node, ``report.html`` in the examination's folder: fit or not, device by device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from llmb.measure.link_words import host_words
from llmb.records.declared import marked
from llmb.records.node_report import NodeReport, Speed
from llmb.records.run_directory import REPORT
from llmb.report.drawing import Drawing, seconds
from llmb.report.links import local_link
from llmb.report.render import NOT_MEASURED, number
from llmb.report.run_facts import flops, gigabytes, interval_words
from llmb.report.run_figures import REST, BarPart, bar, colour, shares_bar
from llmb.report.run_page import STYLES
from llmb.report.templates import page_of

STEPS = {
    "doctor": "doctor",
    "ceilings": "ceilings",
    "collectives": "collectives",
    "alone": "each device alone",
    "together": "all side by side",
    "ddp": "ranks of one run (DDP)",
}


@dataclass(frozen=True)
class NodeFigure:
    """A figure of one device: text, note, a bar against the best device, and a link to the run."""

    text: str
    note: str
    drawing: Drawing | None
    link: str | None = None


def node_page(report: NodeReport) -> str:
    """Return the page of ``report``.

    Bars compare a device with the best device of the node in the same figure. Example: a device at
    90 % of the best one has a bar of 90 %.
    """
    devices = report.devices
    ceilings = [one.ceiling for one in devices]
    products = [None if one is None else one.product_flops_per_second for one in ceilings]
    memory = [None if one is None else one.memory_bytes_per_second for one in ceilings]
    columns = [
        _figures("best product", products, flops),
        _figures("memory", memory, lambda value: f"{number(value / 1e9)} GB/s"),
        _speeds("alone", [one.alone for one in devices]),
        _speeds("side by side", [one.together for one in devices]),
    ]
    return page_of(
        "node.html.jinja",
        STYLES,
        report=report,
        rows=list(zip(devices, *columns, strict=True)),
        steps=STEPS,
        time=_time(report),
        ddp=_speeds("DDP", [report.ddp])[0],
        collectives=_collectives(report),
        links=[] if report.links is None else list(host_words(report.links)),
        marked=marked,
        gigabytes=gigabytes,
        number=number,
        seconds=seconds,
        not_measured=NOT_MEASURED,
    )


def _figures(
    what: str, values: Sequence[float | None], text: Callable[[float], str]
) -> list[NodeFigure]:
    most = max((value for value in values if value is not None), default=0.0)
    return [
        NodeFigure(NOT_MEASURED, "", None)
        if value is None
        else NodeFigure(text(value), "", bar(value / most, what) if most > 0 else None)
        for value in values
    ]


def _speeds(what: str, speeds: Sequence[Speed | None]) -> list[NodeFigure]:
    most = max((one.tokens_per_second for one in speeds if one is not None), default=0.0)
    return [
        NodeFigure(NOT_MEASURED, "", None)
        if one is None
        else NodeFigure(
            f"{number(one.tokens_per_second)} tokens/s",
            interval_words(one.ci95) or "",
            bar(one.tokens_per_second / most, what) if most > 0 else None,
            local_link(one.run, REPORT),
        )
        for one in speeds
    ]


def _time(report: NodeReport) -> tuple[Drawing, tuple[BarPart, ...]] | None:
    whole = sum(step.seconds for step in report.steps)
    if whole <= 0:
        return None
    parts = tuple(
        BarPart(
            STEPS[step.name],
            step.seconds / whole,
            seconds(step.seconds),
            colour(n) if step.status == "done" else REST,
        )
        for n, step in enumerate(report.steps)
    )
    return shares_bar("Time of the examination", parts), parts


def _collectives(report: NodeReport) -> list[tuple[str, str, str, NodeFigure]]:
    most = max((one.bus_bytes_per_second for one in report.collectives), default=0.0)
    return [
        (
            one.kind.replace("_", " "),
            gigabytes(one.bytes),
            seconds(one.seconds),
            NodeFigure(
                f"{number(one.bus_bytes_per_second / 1e9)} GB/s",
                "",
                bar(one.bus_bytes_per_second / most, "bus bandwidth") if most > 0 else None,
            ),
        )
        for one in report.collectives
    ]
