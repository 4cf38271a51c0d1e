"""``llmb show``: prints a record's summary, or the command of the run."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from llmb.cli import completion
from llmb.cli.text import printable

if TYPE_CHECKING:
    from llmb.config import Frozen, RunConfig
    from llmb.records.run_record import RunRecord

F = TypeVar("F", bound="Frozen")


@click.command("show", short_help="Show a run record.")
@click.argument("path", type=Path, shell_complete=completion.run_directories)
@click.option("--command", "as_command", is_flag=True, help="Print the command of the same run.")
@click.option("--json", "as_json", is_flag=True, help="Print the whole record as JSON.")
@click.option("--html", "as_html", is_flag=True, help="Write the run's page, report.html.")
@click.option(
    "--output",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="With --html: the page goes here; default: report.html in the run directory.",
)
def command(
    path: Path, as_command: bool, as_json: bool, as_html: bool, output: Path | None
) -> None:
    """Summarise a run: PATH is a run directory, a record.json, or a bundle (folder or zip).

    \b
    Examples:
      llmb show runs/20261101T120000Z-llama-1.4b-BF16-cpu
      llmb show runs/20261101T120000Z-llama-1.4b-BF16-cpu --html
      llmb show bundle.zip --html --output acme.html
      $(llmb show record.json --command)
    """
    from llmb.errors import UsageError
    from llmb.records.bundle import read_record

    if output is not None and not as_html:
        raise UsageError(f"--output {output}: only with --html")
    record = read_record(path)
    if as_html:
        from llmb.cli import pages

        target = _place_of_page(path) if output is None else output
        pages.put_for_user(target, pages.run_page_of(record))
    elif as_command:
        click.echo(command_line(record))
    elif as_json:
        from llmb.records.canonical import as_json as to_json

        click.echo(json.dumps(to_json(record), indent=1))
    else:
        from rich.console import Console

        from llmb.cli.precision_table import print_recipe
        from llmb.cli.summary import print_summary

        shown = for_terminal(record)
        print_summary(shown, of_a_stranger=True)
        if shown.precision_recipe is not None:
            print_recipe(Console(highlight=False), shown.precision_recipe)


def _place_of_page(path: Path) -> Path:
    """Return the path of ``report.html`` in the run directory at ``path``.

    Raises:
        UsageError: a bundle, whose files are exactly those in the manifest, or a single file.
    """
    from llmb.errors import UsageError
    from llmb.records.bundle import MANIFEST
    from llmb.records.run_directory import REPORT

    if not path.is_dir() or (path / MANIFEST).exists():
        raise UsageError(f"{path} is no run directory: say where the page goes, --output FILE")
    return path / REPORT


def command_line(record: RunRecord, *, same_seed: bool = True) -> str:
    """Return the shell-quoted ``llmb run`` line of the same run.

    Raises:
        BundleRefusedError: a value holds characters that could act on a terminal.
    """
    from llmb.errors import BundleRefusedError

    config = record.config
    flags: dict[str, object] = {
        "workload": _workload(config),
        "mode": config.mode.value,
        "plugin": config.plugin,
        "device": config.device,
        "precision": config.precision.name,
        "batch-size": config.batch_size,
        **_ranks(config),
        **_more(config),
        **({"seed": config.seed} if same_seed else {}),
        "warmup-steps": config.warmup_steps,
        "timed-steps": config.timed_steps,
        "repeats": config.repeats,
        "audit": config.audit.value,
    }
    mixed = "mixed-precision" if config.mixed_precision else "no-mixed-precision"
    flags |= {name.replace("_", "-"): size for name, size in config.shape_overrides.items()}
    words = ["llmb", "run", *(["--" + mixed] if _may_be_mixed(config) else [])]
    mesh = config.parallelism
    words += ["--dynamic"] * config.dynamic
    words += ["--sequence-parallel"] * mesh.sequence_parallel
    words += ["--loss-parallel"] * mesh.loss_parallel
    for flag, value in flags.items():
        # click reads a value with a leading dash as a flag.
        dashed = str(value).startswith("-")
        words += [f"--{flag}={value}"] if dashed else [f"--{flag}", str(value)]
    for key, option in config.plugin_options.items():
        text = str(option).lower() if isinstance(option, bool) else str(option)
        words += ["-O", f"{key}={text}"]
    line = shlex.join(words)
    if not line.isprintable():
        raise BundleRefusedError(f"the configuration holds unprintable text: {printable(line)}")
    return line


def _ranks(config: RunConfig) -> dict[str, object]:
    """Return the flags for as many ranks on one machine, with the same layout."""
    mesh = config.parallelism
    if mesh.world_size == 1:
        return {}
    sizes = {name: getattr(mesh, name) for name in ("dp_replicate", "dp_shard", "tp", "pp")}
    found: dict[str, object] = {"nproc": mesh.world_size}
    found |= {name.replace("_", "-"): size for name, size in sizes.items() if size > 1}
    if mesh.dp_shard > 1 and not mesh.reshard_after_forward:
        found["zero"] = 2
    return found | ({"schedule": mesh.schedule} if mesh.pp > 1 else {})


def _more(config: RunConfig) -> dict[str, object]:
    """Return the flags with values other than the defaults."""
    found: dict[str, object] = {}
    if config.accumulate > 1 or config.parallelism.pp > 1:
        found["accumulate"] = config.accumulate
    if config.executor != "eager":
        found["executor"] = config.executor
    if config.compile_mode != "default":
        found["compile-mode"] = config.compile_mode
    others = (
        ("sac-freq", config.sac_freq),
        ("scope", config.generate_scope),
        ("prompt-length", None if config.prompt_tokens else config.prompt_length),
        ("new-tokens", config.new_tokens),
        ("data", config.data and f"{config.data.kind}:{config.data.path}"),
        ("tokenizer", config.data and config.data.tokenizer),
        ("weights", config.weights and config.weights.path),
    )
    return found | {flag: value for flag, value in others if value not in (None, "bytes")}


def _may_be_mixed(config: RunConfig) -> bool:
    from llmb.workloads import WORKLOADS

    workload = WORKLOADS.get(config.workload)
    usual = workload is not None and workload.recipe.mixed_precision
    return usual or config.mixed_precision


def _workload(config: RunConfig) -> str:
    if config.definition is None:
        return config.workload
    return json.dumps({"name": config.workload, **config.definition})


def for_terminal(value: F) -> F:
    """Return a record, or part of a record, with every text escaped for the terminal."""
    from llmb.records.canonical import as_json

    def escape(item: Any) -> Any:
        if isinstance(item, dict):
            return {printable(key): escape(part) for key, part in item.items()}
        if isinstance(item, list):
            return [escape(part) for part in item]
        return printable(item) if isinstance(item, str) else item

    return type(value).model_validate(escape(as_json(value)))
