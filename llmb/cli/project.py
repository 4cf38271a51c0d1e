"""``llmb project``: figures computed from a step's time, or from a job; nothing is run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from llmb.cli.project_job import job, search_command
from llmb.cli.project_options import (
    AMOUNT,
    COUNT,
    as_json,
    printed,
    workload_of_name,
    workload_option,
)
from llmb.cli.run_name import RunName
from llmb.errors import UsageError

if TYPE_CHECKING:
    from llmb.measure.step_figures import StepFigures
    from llmb.records.run_record import Metric
    from llmb.workloads import Workload

_TIMES = ("step_time", "iterations_per_second", "tokens_per_second")


class _OldLines(click.Group):
    """Takes the command lines of llmb 0.1, which had no subcommands, for one release."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Put the command's name before options without a command, and print a note."""
        if args and args[0].startswith("-") and args[0] not in ("-h", "--help"):
            name, args = _moved(args)
            line = f"llmb: this is `llmb project {name}` now; without {name} it will be refused"
            click.echo(line, err=True)
            args = [name, *args]
        return super().parse_args(ctx, args)


def _moved(args: list[str]) -> tuple[str, list[str]]:
    """Return the command of ``args``, and the arguments."""
    names = {word.partition("=")[0] for word in args}
    if "--steps" in names:
        return "node-hours", args
    if "--hardware" in names:
        found = "search" if "--search" in names else "job"
        return found, [word for word in args if word != "--search"]
    if "--model" in names:
        at = next(n for n, word in enumerate(args) if word.partition("=")[0] == "--model")
        return "seed", [*args[:at], *args[at + (1 if "=" in args[at] else 2) :]]
    return "step", args


@click.group(
    "project",
    cls=_OldLines,
    short_help="Compute step time, FLOP/s and node-hours of a job.",
)
def command() -> None:
    """Compute the figures of a source document from the time of a step, or the time of a job.

    Nothing is run. Every figure is printed with the formula.

    \b
    llmb project step --workload alcf-1t --step-time 54.9
    llmb project step --from runs/20261101T120000Z-llama-1.4b-BF16-cpu
    llmb project node-hours --steps 150000@512,50000@2048 --target-global-batch 4096 --nodes 2
                            --rate 512:1.18it/s@1024 --rate 2048:0.19it/s@1024
    llmb project job --workload alcf-1t --hardware aurora --recompute full --zero 1
    llmb project search --workload alcf-1t --hardware h100 --world-size 12288 --global-batch 6144
    llmb project seed --workload alcf-1t --alpha 169TFLOP/s --beta 44.4GB/s
    """


@command.command("step", short_help="Derive every figure from the time of a step.")
@workload_option
@click.option("--step-time", type=AMOUNT, metavar="SECONDS", help="T, the seconds of a step.")
@click.option("--iterations-per-second", type=AMOUNT, help="Steps a second, instead of a time.")
@click.option("--tokens-per-second", type=AMOUNT, help="Of all devices, instead of a time.")
@click.option(
    "--from",
    "record",
    type=RunName(),
    metavar="RECORD",
    help="A measured run (run directory or its name, record.json, bundle), instead of a time.",
)
@click.option("--global-batch", type=COUNT, help="b, sequences of a step [the original's].")
@click.option("--world-size", type=COUNT, help="Devices [default: the original's].")
@click.option("--peak-tflops", type=AMOUNT, help="Peak of one device in TFLOP/s, for MFU.")
@as_json
def step(**flags: Any) -> None:
    """Derive figure of merit (1T document), tokens/s, FLOP/s by every convention, and MFU.

    \b
    llmb project step --workload alcf-1t --step-time 54.9
    llmb project step --workload nanotron-llama2-7b --tokens-per-second 32200 --peak-tflops 312
    """
    given = [name for name in (*_TIMES, "record") if flags[name] is not None]
    if len(given) != 1:
        names = ", ".join(map(_option, _TIMES))
        raise UsageError(f"give one of {names} or --from RECORD")
    with printed(flags) as result:
        if flags["record"] is not None:
            _refuse(flags, ["workload", "global_batch", "world_size"], "is in the record of --from")
            workload, found = _measured(flags["record"])
        else:
            workload = workload_of_name(flags["workload"])
            untimed, value = _untimed(workload, flags), flags[given[0]]
            counts = {"iterations_per_second": 1, "tokens_per_second": untimed.tokens}
            per_second = counts.get(given[0])
            found = replace(untimed, seconds=value if per_second is None else per_second / value)
        result |= _result(workload, found, _peak(flags))


@command.command("seed", short_help="The 1T document's own formula for the time of a step.")
@workload_option
@click.option(
    "--alpha", required=True, metavar="SECONDS|RATE", help="Of a multiply-add, or a rate."
)
@click.option("--beta", required=True, metavar="SECONDS|RATE", help="Of an element, or a rate.")
@click.option("--tp", type=COUNT, help="Ranks that share a layer [default: the original's].")
@click.option("--pp", type=COUNT, help="Stages of layers [default: the original's].")
@click.option("--global-batch", type=COUNT, help="b, sequences of a step [the original's].")
@click.option("--world-size", type=COUNT, help="Devices [default: the original's].")
@click.option("--peak-tflops", type=AMOUNT, help="Peak of one device in TFLOP/s, for MFU.")
@click.option(
    "--bytes-per-value", type=COUNT, default=2, show_default=True, help="For --beta as a rate."
)
@as_json
def seed(**flags: Any) -> None:
    """Compute the time of a step from alpha and beta, as the 1T document does.

    \b
    llmb project seed --workload alcf-1t --alpha 169TFLOP/s --beta 44.4GB/s
    """
    from llmb.projection import time_to_solution as model

    with printed(flags) as result:
        alpha = model.alpha_of(flags["alpha"])
        beta = model.beta_of(flags["beta"], flags["bytes_per_value"])
        workload = workload_of_name(flags["workload"])
        tp, pp = flags["tp"] or workload.tp, flags["pp"] or workload.pp
        timed = _untimed(workload, flags)
        if timed.world_size % (tp * pp):
            raise UsageError(
                f"tp {tp} x pp {pp} does not divide {timed.world_size} devices: use --world-size"
            )
        each = timed.sequences * tp * pp / timed.world_size
        found = model.step_time(workload.shape, each, tp, pp, alpha, beta)
        result |= _result(workload, replace(timed, seconds=found.total_s), _peak(flags))
        terms = [
            (
                "compute_s",
                found.compute_s,
                "s",
                f"alpha b L (36 s d^2 + 6 s^2 d) / (PP TP), b {each:g}",
            ),
            ("communication_s", found.communication_s, "s", "beta 4 b L s d / PP"),
            ("MACs per device", found.macs_per_device, "MAC", "b L (36 s d^2 + 6 s^2 d) / (PP TP)"),
            (
                "all-reduced elements",
                found.elements_per_device,
                "values",
                "4 b L s d / PP, per device",
            ),
        ]
        head = [
            dict(zip(("name", "value", "unit", "formula"), term, strict=True)) for term in terms
        ]
        result |= {"model": "seed", "alpha_s": alpha, "beta_s": beta, "tp": tp, "pp": pp}
        result["figures"] = [*head, *result["figures"]]
        result["notes"] += model.NOTES


@command.command("node-hours", short_help="Node-hours of a plan of steps (NeMo document).")
@click.option(
    "--steps", required=True, metavar="N@LENGTH,...", help="Number of steps per sequence length."
)
@click.option("--target-global-batch", required=True, type=COUNT, help="Sequences of each step.")
@click.option(
    "--rate",
    "rates",
    multiple=True,
    metavar="LENGTH:RATE",
    help="512:1.18it/s@1024 (global batch), 512:1167samples/s or 512:597333tokens/s.",
)
@click.option(
    "--from",
    "records",
    type=RunName(),
    metavar="RECORD",
    multiple=True,
    help="A measured run, whose rate counts at its length.",
)
@click.option("--nodes", type=COUNT, help="Nodes the rates were measured on.")
@as_json
def node_hours_command(**flags: Any) -> None:
    """Compute the node-hours of a training of several lengths.

    \b
    llmb project node-hours --steps 150000@512,50000@2048 --target-global-batch 4096 --nodes 2
                            --rate 512:1.18it/s@1024 --rate 2048:0.19it/s@1024
    """
    from llmb.projection import node_hours

    with printed(flags) as result:
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
        result |= {
            "target_global_batch": plan.target_global_batch,
            "nodes": plan.nodes,
            "formula": "nodes x steps x (target global batch / global batch) / iterations/s / 3600",
            "stages": costs,
            "node_hours": plan.node_hours,
        }
        result["notes"] += plan.warnings


command.add_command(job)
command.add_command(search_command)


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


def _untimed(workload: Workload, flags: Mapping[str, Any]) -> StepFigures:
    """Return a step of ``workload`` with a time of 1 s, until the time is known."""
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
    given = next((name for name in names if flags[name] is not None), None)
    if given is not None:
        raise UsageError(f"{_option(given)} {why}")


def _option(name: str) -> str:
    return "--" + name.replace("_", "-")
