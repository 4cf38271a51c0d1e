"""The command line: the only room that prints or exits.

A command is imported when the command is called: ``llmb --help`` answers in 0.1 s.
"""

from __future__ import annotations

import errno
import os
import sys
from contextlib import suppress
from importlib import import_module
from typing import Any

import click
from click.shell_completion import CompletionItem

from llmb import __version__, endings
from llmb.cli import caller, settings
from llmb.cli.help import write_groups
from llmb.cli.text import printable
from llmb.errors import INTERRUPTED_EXIT_CODE, LlmbError, RunFailedError, UsageError

#: Purpose -> command -> (module, help line). A test compares the help lines with the commands'.
GROUPS = {
    "Measure": {
        "demo": ("demo", "Catch a cheat in a minute: two runs, a bundle, a page."),
        "run": ("run", "Run the benchmark and leave a run directory."),
        "sweep": ("sweep", "Run every precision at several batch sizes; resumable."),
        "node": ("node", "Test a new node: each device, all at once, DDP."),
        "calibrate": ("calibrate", "Measure a device's ceilings on the model's own shapes."),
        "config": ("config_show", "Show defaults from llmb.toml and variables."),
        "doctor": ("doctor", "Show devices and packages here, and missing ones."),
    },
    "Check": {
        "list": ("list_runs", "List the runs here, the newest last."),
        "latest": ("latest", "Print the path of the latest run."),
        "tag": ("tag", "Give a run a name of your own, or take the name away."),
        "show": ("show", "Show a run record."),
        "audit": ("audit", "Show the audit of a run, rule by rule."),
        "verify": ("verify", "Check a bundle: integrity, schema, every derived number."),
        "reproduce": ("reproduce", "Repeat a bundle's run on this machine, and compare."),
    },
    "Submit": {
        "package-submission": (
            "package_submission",
            "Make a submission bundle of finished runs.",
        ),
        "report": ("report", "Rank bundles, or show a source document's own tables."),
    },
    "Compare": {
        "compare": ("compare", "Compare runs with a base run, and require conditions."),
        "history": ("history", "Show tokens/s over time, and change points."),
        "export": ("export", "Export runs as CSV, JSON, Parquet or MLPerf log lines."),
    },
    "Plan": {
        "project": ("project", "Compute step time, FLOP/s and node-hours of a job."),
        "simulate": ("simulate", "Execute ranks of a huge job without its memory."),
        "launch": ("launch", "Write a job file for many ranks."),
    },
    "Extend": {
        "workload": ("workload", "List, show, write and check workloads."),
        "data": ("data", "Pack text into training data, and show data."),
        "plugin": ("plugin", "List, check and write plugins."),
    },
}
COMMANDS = {name: found for group in GROUPS.values() for name, found in group.items()}


class _InterruptedError(Exception):
    """A command was interrupted; the text names the phase, if known."""


class LazyGroup(click.Group):
    """A group whose commands are imported on first use."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands in the order of the help."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return one command."""
        if cmd_name not in COMMANDS:
            return None
        command = import_module(f"llmb.cli.{COMMANDS[cmd_name][0]}").command
        assert isinstance(command, click.Command)
        return command

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; keep an interruption from click, because click prints an empty line."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as error:
            raise _InterruptedError(str(error)) from error

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands by purpose, without importing a command."""
        write_groups(formatter, GROUPS)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Return the commands that begin with ``incomplete``, without importing a command."""
        return [
            CompletionItem(name, help=line)
            for name, (_, line) in COMMANDS.items()
            if name.startswith(incomplete)
        ]


_CONTEXT = {"help_option_names": ["-h", "--help"], "auto_envvar_prefix": settings.PREFIX}


@click.group(cls=LazyGroup, context_settings=_CONTEXT)
@click.version_option(__version__, prog_name="llmb")
@click.option(
    "--isolated", is_flag=True, help="Read no llmb.toml, and no variable such as LLMB_RUN_DEVICE."
)
@click.pass_context
def llmb(ctx: click.Context, isolated: bool) -> None:
    """Measure how fast this machine trains a language model, and prove it.

    \b
    llmb demo                   catch a cheat, see all of llmb (a minute)
    llmb run --preset debug     a tiny run, to see that llmb works (seconds)
    llmb run                    the official benchmark, ten minutes at most

    `llmb COMMAND --help` explains a command. docs/usage.md has shell completion.
    """
    name = ctx.invoked_subcommand
    command = None if name is None else ctx.command.get_command(ctx, name)  # type: ignore[attr-defined]
    if isolated:
        ctx.auto_envvar_prefix = None
    elif command is not None:
        settings.load(ctx, command.name, command)


def main() -> None:
    """Run the command line; an ``LlmbError`` becomes one line on stderr and an exit code."""
    endings.listen()
    try:
        sys.exit(llmb.main(standalone_mode=False))
    except click.exceptions.Exit as error:
        sys.exit(error.exit_code)
    except click.ClickException as error:
        from llmb.cli import usage

        lines = [*usage.lines(error, list(COMMANDS))]
        for line in lines:
            click.echo(line, err=True)
        caller.failed(UsageError.__name__, "; ".join(lines).removeprefix("llmb: "))
        sys.exit(error.exit_code)
    except LlmbError as error:
        click.echo(f"llmb: {printable(str(error))}", err=True)
        caller.failed(type(error).__name__, printable(str(error)))
        sys.exit(error.exit_code)
    except (_InterruptedError, KeyboardInterrupt, click.Abort) as error:
        _say_interrupted(printable(str(error)) or "interrupted")
        sys.exit(INTERRUPTED_EXIT_CODE)
    except BrokenPipeError:
        sys.exit(1)
    except OSError as error:
        if not endings.is_out_of_space(error) and error.errno != errno.EIO:
            raise
        with suppress(OSError):
            click.echo(f"llmb: cannot write the output: {error.strerror}", err=True)
        os._exit(RunFailedError.exit_code)  # the interpreter would try to flush once more
    finally:
        endings.stop_listening()


def _say_interrupted(line: str) -> None:
    """Print ``line``; a rank passes ``line`` to the process that started the rank."""
    from llmb.config import environment, last_line_file
    from llmb.parallel.place import place_in

    file, place = last_line_file(), None
    with suppress(LlmbError):
        place = place_in(environment())
    if place is not None and not place.leads:
        return
    if file is None:
        click.echo(f"llmb: {line}", err=True)
        caller.failed(caller.INTERRUPTED, line)
    else:
        with suppress(OSError):
            file.write_text(line)
