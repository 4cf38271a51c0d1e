"""``llmb show``: a record as a person wants to read it, or the command that made it."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import click

from llmb.cli.text import printable

if TYPE_CHECKING:
    from llmb.records.run_record import Result, RunRecord

_NOT_MEASURED = "not measured"


@click.command("show")
@click.argument("path", type=Path)
@click.option("--command", "as_command", is_flag=True, help="Print the command of the same run.")
@click.option("--json", "as_json", is_flag=True, help="Print the whole record as JSON.")
def command(path: Path, as_command: bool, as_json: bool) -> None:
    """Summarise a run: PATH is a run directory, a record.json, or a bundle (folder or zip).

    \b
    Examples:
      llmb show runs/20261101T120000Z-llama-1.4b-BF16-cpu
      $(llmb show record.json --command)
    """
    from llmb.records.bundle import read_record

    record = read_record(path)
    if as_command:
        click.echo(command_line(record))
    elif as_json:
        from llmb.records.canonical import as_json as to_json

        click.echo(json.dumps(to_json(record), indent=1))
    else:
        _print_summary(record)


def command_line(record: RunRecord) -> str:
    """Return the shell-quoted ``llmb run`` line that asks for the same run again.

    Raises:
        BundleRefusedError: a value holds characters that could act on a terminal.
    """
    from llmb.errors import BundleRefusedError

    config = record.config
    flags: dict[str, object] = {
        "workload": config.workload,
        "plugin": config.plugin,
        "device": config.device,
        "precision": config.precision.name,
        "batch-size": config.batch_size,
        "seed": config.seed,
        "warmup-steps": config.warmup_steps,
        "timed-steps": config.timed_steps,
        "repeats": config.repeats,
    }
    flags |= {name.replace("_", "-"): size for name, size in config.shape_overrides.items()}
    words = ["llmb", "run"]
    for flag, value in flags.items():
        # A value that begins with a dash would be read as a flag of its own.
        dashed = str(value).startswith("-")
        words += [f"--{flag}={value}"] if dashed else [f"--{flag}", str(value)]
    for key, option in config.plugin_options.items():
        text = str(option).lower() if isinstance(option, bool) else str(option)
        words += ["-O", f"{key}={text}"]
    line = shlex.join(words)
    if not line.isprintable():
        raise BundleRefusedError(f"the configuration holds unprintable text: {printable(line)}")
    return line


def summary(record: RunRecord) -> list[tuple[str, str]]:
    """Return the rows of the summary, label and text, in reading order."""
    result, precision = record.result, record.precision
    devices = ", ".join(device.description or device.name for device in record.system.devices)
    mfu = result.mfu and f"{result.mfu.value:.1%} of {result.mfu.peak_source}"
    energy = result.energy and (
        f"{result.energy.joules:,.1f} J, {result.energy.tokens_per_joule:,.3f} tokens/J "
        f"({result.energy.source}, {result.energy.scope})"
    )
    memory = result.peak_memory_bytes
    fraction = result.fraction_of_ceiling
    rows = [
        ("throughput", _throughput(result)),
        ("class", "; ".join((record.class_, *record.waivers))),
        ("verdict", record.audit.verdict.value),
        ("precision", f"{precision.declared} declared, {precision.effective or 'not observed'}"),
        ("workload", f"{record.workload.name} {record.workload.mode}, {_batch(record)}"),
        ("plugin", f"{record.plugin.name} {record.plugin.version} ({record.plugin.distribution})"),
        ("device", f"{record.topology.world_size} x {record.config.device} ({devices})"),
        ("step time", _step_time(result)),
        ("of the ceiling", _NOT_MEASURED if fraction is None else f"{fraction:.1%}"),
        ("MFU", mfu or _NOT_MEASURED),
        ("peak memory", _NOT_MEASURED if memory is None else f"{memory / 2**30:,.2f} GiB"),
        ("energy", energy or _NOT_MEASURED),
        ("loss", f"{result.loss_first:.4f} -> {result.loss_last:.4f}"),
        ("run", f"{record.run_id} at {record.created_utc}, llmb {record.llmb_version}"),
    ]
    rows += [("warning", warning) for warning in record.warnings]
    return [(label, printable(text)) for label, text in rows]


def _throughput(result: Result) -> str:
    interval = "interval not measured"
    if result.ci95 is not None:
        interval = f"95 % interval {result.ci95[0]:,.1f} to {result.ci95[1]:,.1f}"
    return f"{result.tokens_per_second:,.1f} tokens/s ({interval})"


def _batch(record: RunRecord) -> str:
    timing = record.timing
    return (
        f"batch {record.config.batch_size}, {timing.timed_steps} timed steps, "
        f"{len(timing.repeats)} repeat{'s' if len(timing.repeats) > 1 else ''}"
    )


def _step_time(result: Result) -> str:
    step = result.step_time_s
    if step is None:
        return _NOT_MEASURED
    return f"{step.median:.4g} s (5 to 95 %: {step.p5:.4g} to {step.p95:.4g}, cv {step.cv:.1%})"


def _print_summary(record: RunRecord) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    for label, text in summary(record):
        # As Text, so that brackets in a stranger's words are not markup.
        table.add_row(Text(label, style="dim"), Text(text, style="bold" * (label == "throughput")))
    Console().print(table)
