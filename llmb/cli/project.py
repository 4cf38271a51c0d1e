"""``llmb project``: what follows from a step's time by the documents' formulas; nothing is run."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from llmb.cli.amounts import Amount
from llmb.errors import UsageError

if TYPE_CHECKING:
    from llmb.measure.step_figures import StepFigures
    from llmb.records.run_record import Metric
    from llmb.workloads import Workload

_COUNT = click.IntRange(min=1, max=10**12)
#: Shorter is no step, longer no number.
_AMOUNT = Amount(min=1e-12, max=1e18)
_TIMES = ("step_time", "iterations_per_second", "tokens_per_second")
_PIPED_WIDTH = 160


@click.command(
    "project", short_help="Compute figures of merit, FLOP/s and node-hours from a step's time."
)
@click.option("--workload", metavar="NAME|FILE.json", help="Whose step (llmb workload list).")
@click.option("--step-time", type=_AMOUNT, metavar="SECONDS", help="T, the seconds of a step.")
@click.option("--iterations-per-second", type=_AMOUNT, help="Steps a second, instead of a time.")
@click.option("--tokens-per-second", type=_AMOUNT, help="Of all devices, instead of a time.")
@click.option(
    "--from",
    "records",
    type=click.Path(path_type=Path),
    metavar="RECORD",
    multiple=True,
    help="A measured run (run directory, record.json, bundle), instead of a time.",
)
@click.option(
    "--global-batch", type=_COUNT, help="b, sequences of a step [default: the original's]."
)
@click.option("--world-size", type=_COUNT, help="Devices [default: the original's].")
@click.option("--peak-tflops", type=_AMOUNT, help="Peak of one device in TFLOP/s, for MFU.")
@click.option("--steps", metavar="N@LENGTH,...", help="Node-hours of so many steps at a length.")
@click.option("--target-global-batch", type=_COUNT, help="Sequences of each of these steps.")
@click.option(
    "--rate",
    "rates",
    multiple=True,
    metavar="LENGTH:RATE",
    help="512:1.18it/s@1024 (global batch), 512:1167samples/s or 512:597333tokens/s.",
)
@click.option("--nodes", type=_COUNT, help="Nodes the rates were measured on.")
@click.option("--model", type=click.Choice(["seed"]), help="The 1T document's formula for T.")
@click.option("--alpha", metavar="SECONDS|RATE", help="Of a multiply-add, or 169TFLOP/s.")
@click.option("--beta", metavar="SECONDS|RATE", help="Of an all-reduced element, or 44.4GB/s.")
@click.option("--tp", type=_COUNT, help="Ranks that share a layer [default: the original's].")
@click.option("--pp", type=_COUNT, help="Stages of layers [default: the original's].")
@click.option("--hardware", metavar="NAME|FILE.json", help="Project the time on these devices.")
@click.option("--micro-batch-size", type=_COUNT, help="Sequences of a micro-batch, on a replica.")
@click.option("--virtual-stages", type=_COUNT, help="Stages of each rank (interleaved) [1].")
@click.option("--zero", type=click.IntRange(0, 3), help="What replicas share [0].")
@click.option("--recompute", type=click.Choice(["none", "attention", "full"]), help="[none]")
@click.option("--sequence-parallel", is_flag=True, default=None, help="With --tp.")
@click.option("--unfused", is_flag=True, default=None, help="Elementwise work is not compiled.")
@click.option("--overlap-tp", is_flag=True, default=None, help="Sums run beside products.")
@click.option("--search", is_flag=True, default=None, help="Find the fastest layout that fits.")
@click.option("--tokens", type=_AMOUNT, help="Node-hours and days for so many tokens.")
@click.option(
    "--figure",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Draw the parts of a step and its scaling (.png, .svg).",
)
@click.option(
    "--bytes-per-value", type=_COUNT, default=2, show_default=True, help="For --beta as a rate."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(**flags: Any) -> None:
    """Compute what a source document derives from the time of a step, with each formula.

    Of a step: figure of merit (1T document), tokens/s, FLOP/s by every convention, MFU of a peak.
    Of --steps: node-hours (NeMo document). Of --model seed: the time itself, from alpha and beta.
    Of --hardware: the time itself, part by part, with memory; --search finds a layout.

    \b
    Examples:
      llmb project --workload alcf-1t --step-time 54.9
      llmb project --workload nanotron-llama2-7b --tokens-per-second 32200 --peak-tflops 312
      llmb project --from runs/20261101T120000Z-llama-1.4b-BF16-cpu
      llmb project --steps 150000@512,50000@2048 --target-global-batch 4096 --nodes 2
                   --rate 512:1.18it/s@1024 --rate 2048:0.19it/s@1024
      llmb project --workload alcf-1t --hardware aurora --recompute full --zero 1
      llmb project --workload alcf-1t --hardware h100 --world-size 12288 --global-batch 6144
                   --search
      llmb project --workload alcf-1t --model seed --alpha 169TFLOP/s --beta 44.4GB/s
    """
    subject = _step
    if flags["steps"] is not None:
        subject = _node_hours
    elif flags["hardware"] is not None:
        subject = _job
    elif flags["model"] is not None:
        subject = _seed_model
    try:
        result, notes = subject(flags)
    except OverflowError:
        raise UsageError("these sizes are too large to compute with: give smaller ones") from None
    if flags["as_json"]:
        click.echo(json.dumps({**result, "notes": notes}, indent=1))
        return
    _print(result, notes)


def _step(flags: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    _refuse(flags, ["target_global_batch", "rates", "nodes"], "goes with --steps")
    _refuse(flags, ["alpha", "beta", "tp", "pp"], "goes with --model seed or --hardware")
    _refuse(flags, _OF_JOBS, "goes with --hardware")
    given = [name for name in _TIMES if flags[name] is not None]
    if len(given) + len(flags["records"]) != 1:
        names = ", ".join(map(_option, _TIMES))
        raise UsageError(f"give one of {names} or --from RECORD (or --steps, or --model seed)")
    if flags["records"]:
        _refuse(flags, ["workload", "global_batch", "world_size"], "is in the record of --from")
        workload, step = _measured(flags["records"][0])
        return _result(workload, step, _peak(flags)), []
    workload = _workload(flags)
    step, value = _untimed(workload, flags), flags[given[0]]
    per_second = {"iterations_per_second": 1, "tokens_per_second": step.tokens}.get(given[0])
    seconds = value if per_second is None else per_second / value
    return _result(workload, replace(step, seconds=seconds), _peak(flags)), []


#: Options that only the projection of a job has.
_OF_JOBS = (
    *("micro_batch_size", "virtual_stages", "zero", "recompute", "sequence_parallel"),
    *("unfused", "overlap_tp", "search", "tokens", "figure"),
)


def _job(flags: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    from llmb.cli.project_job import project

    _refuse(flags, ["target_global_batch", "rates", "nodes"], "goes with --steps")
    _refuse(flags, ["alpha", "beta", "model"], "goes with --model seed, without --hardware")
    _refuse(flags, _TIMES, "is what --hardware computes")
    _refuse(flags, ["peak_tflops"], "is in the description of --hardware")
    if len(flags["records"]) > 1:
        raise UsageError("--hardware takes one --from: its constants are calibrated by one run")
    record = flags["records"][0] if flags["records"] else None
    return project(_workload(flags), flags, record)


def _seed_model(flags: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    from llmb.projection import time_to_solution as model

    _refuse(flags, ["target_global_batch", "rates", "nodes"], "goes with --steps")
    _refuse(flags, [*_TIMES, "records"], "is what --model seed computes")
    if flags["alpha"] is None or flags["beta"] is None:
        raise UsageError("--model seed needs --alpha and --beta, such as 169TFLOP/s and 44.4GB/s")
    alpha = model.alpha_of(flags["alpha"])
    beta = model.beta_of(flags["beta"], flags["bytes_per_value"])
    workload = _workload(flags)
    tp, pp = flags["tp"] or workload.tp, flags["pp"] or workload.pp
    step = _untimed(workload, flags)
    if step.world_size % (tp * pp):
        raise UsageError(
            f"tp {tp} x pp {pp} does not divide {step.world_size} devices: use --world-size"
        )
    each = step.sequences * tp * pp / step.world_size
    found = model.step_time(workload.shape, each, tp, pp, alpha, beta)
    result = _result(workload, replace(step, seconds=found.total_s), _peak(flags))
    terms = [
        (
            "compute_s",
            found.compute_s,
            "s",
            f"alpha b L (36 s d^2 + 6 s^2 d) / (PP TP), b {each:g}",
        ),
        ("communication_s", found.communication_s, "s", "beta 4 b L s d / PP"),
        ("MACs per device", found.macs_per_device, "MAC", "b L (36 s d^2 + 6 s^2 d) / (PP TP)"),
        ("all-reduced elements", found.elements_per_device, "values", "4 b L s d / PP, per device"),
    ]
    head = [dict(zip(("name", "value", "unit", "formula"), term, strict=True)) for term in terms]
    result |= {"model": "seed", "alpha_s": alpha, "beta_s": beta, "tp": tp, "pp": pp}
    return {**result, "figures": [*head, *result["figures"]]}, list(model.NOTES)


def _node_hours(flags: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    from llmb.projection import node_hours

    _refuse(flags, ["model", "alpha", "beta", "tp", "pp"], "does not go with --steps")
    _refuse(flags, [*_TIMES, "workload", "global_batch"], "does not go with --steps: use --rate")
    _refuse(flags, ["world_size", "peak_tflops"], "does not go with --steps")
    if flags["target_global_batch"] is None:
        raise UsageError("--steps needs --target-global-batch, the sequences of each of its steps")
    rates = [node_hours.rate(text) for text in flags["rates"]]
    found = [(path, *_measured(path)) for path in flags["records"]]
    for path, workload, step in found:
        rates.append(node_hours.measured_rate(step, workload.shape.sequence_length, str(path)))
    nodes = flags["nodes"] or _nodes([step for _, _, step in found])
    plan = node_hours.plan(
        node_hours.stages(flags["steps"]), rates, flags["target_global_batch"], nodes
    )
    costs = [
        {
            "steps": cost.stage.steps,
            "sequence_length": cost.stage.length,
            "rate": cost.rate.text,
            "samples_per_second": cost.rate.samples_per_second,
            "iterations_per_second": cost.iterations_per_second,
            "node_hours_per_100k_steps": cost.node_hours_per_100k_steps,
            "node_hours": cost.node_hours,
        }
        for cost in plan.costs
    ]
    result = {
        "target_global_batch": plan.target_global_batch,
        "nodes": plan.nodes,
        "formula": "nodes x steps x (target global batch / global batch) / iterations/s / 3600",
        "stages": costs,
        "node_hours": plan.node_hours,
    }
    return result, list(plan.warnings)


def _nodes(steps: Iterable[StepFigures]) -> int:
    from llmb.measure.step_figures import DEVICES_PER_NODE

    found = {-(-step.world_size // DEVICES_PER_NODE) for step in steps}
    if len(found) != 1:
        raise UsageError("--steps needs --nodes: how many nodes the rates were measured on")
    return found.pop()


def _measured(path: Path) -> tuple[Workload, StepFigures]:
    from llmb.projection.step import measured_step
    from llmb.records.bundle import read_record

    return measured_step(read_record(path))


def _workload(flags: Mapping[str, Any]) -> Workload:
    from llmb.cli.run import workload_of
    from llmb.workloads import find

    if flags["workload"] is None:
        raise UsageError("whose step is it? name a --workload (llmb workload list)")
    name, definition = workload_of(flags["workload"])
    return find(name, {}, definition)


def _untimed(workload: Workload, flags: Mapping[str, Any]) -> StepFigures:
    """Return the step of ``workload``, of one second until its own are known."""
    from llmb.projection.step import given_step

    return given_step(workload, 1.0, flags["global_batch"], flags["world_size"])


def _peak(flags: Mapping[str, Any]) -> float | None:
    peak: float | None = flags["peak_tflops"]
    return None if peak is None else peak * 1e12


def _result(workload: Workload, step: StepFigures, peak_flops: float | None) -> dict[str, Any]:
    from llmb.projection.step import figures

    found: Iterable[Metric] = figures(workload, step, peak_flops)
    return {
        "workload": workload.name,
        "sizes": {
            name: getattr(workload.shape, field)
            for name, field in (
                ("L", "num_hidden_layers"),
                ("d", "hidden_size"),
                ("s", "sequence_length"),
            )
        },
        "global_batch_size": step.sequences,
        "world_size": step.world_size,
        "figures": [metric.model_dump() for metric in found],
    }


def _refuse(flags: Mapping[str, Any], names: Iterable[str], why: str) -> None:
    given = next((name for name in names if flags[name] not in (None, ())), None)
    if given is not None:
        raise UsageError(f"{_option(given)} {why}")


def _option(name: str) -> str:
    return {"records": "--from", "rates": "--rate"}.get(name, "--" + name.replace("_", "-"))


def _print(result: Mapping[str, Any], notes: Iterable[str]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from llmb.cli.text import printable

    console = Console(highlight=False, width=None if sys.stdout.isatty() else _PIPED_WIDTH)
    if "parts" in result:
        from llmb.cli.project_job import show

        show(result, console)
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    if "figures" in result:
        sizes = ", ".join(f"{name} {size:,}" for name, size in result["sizes"].items())
        devices = "1 device" if result["world_size"] == 1 else f"{result['world_size']:,} devices"
        about = f"b {result['global_batch_size']:,}, {devices}"
        console.print(Text(f"{printable(result['workload'])}: {sizes}, {about}", "bold"))
        for title in ("figure", "value", "unit", "formula"):
            table.add_column(title, justify="right" if title == "value" else "left")
        for one in result["figures"]:
            table.add_row(one["name"], number(one["value"]), one["unit"], Text(one["formula"]))
        console.print(table)
    else:
        for title in ("steps", "length", "rate", "per 100k steps", "node-hours"):
            table.add_column(title, justify="left" if title == "rate" else "right")
        for one in result["stages"]:
            table.add_row(
                f"{one['steps']:,}",
                f"{one['sequence_length']:,}",
                Text(printable(one["rate"])),
                number(one["node_hours_per_100k_steps"]),
                number(one["node_hours"]),
            )
        console.print(table)
        total = f"{number(result['node_hours'])} node-hours on {result['nodes']} nodes"
        batch = f"steps of {result['target_global_batch']:,} sequences"
        console.print(Text(f"{total}, {batch}", "bold"))
        console.print(Text(result["formula"], "dim"))
    for note in notes:
        console.print(Text(f"note: {printable(note)}", style="yellow"), soft_wrap=True)


def number(value: float) -> str:
    """Return ``value`` with six digits, in thousands where it is not too large for them."""
    return (
        f"{value:,.6g}" if abs(value) < 1e6 else f"{value:,.0f}" if value < 1e9 else f"{value:.6g}"
    )
