"""``llmb config show``: where each setting came from."""

from __future__ import annotations

import json
import re
from typing import Any

import click

from llmb.cli import settings
from llmb.cli.text import printable
from llmb.errors import UsageError, did_you_mean

#: The words for a default that depends on the machine, in the help of an option.
_DEFAULT = re.compile(r"\[default: (.*)\]")


@click.group("config", short_help="Show defaults from llmb.toml and variables.")
def command() -> None:
    """Show the defaults that llmb.toml, [tool.llmb] of pyproject.toml and LLMB_* variables set.

    \b
    Examples:
      llmb config show
      llmb config show run
    """


@command.command("show", short_help="Show where the value of each option came from.")
@click.argument("name", metavar="[COMMAND]", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
def show(ctx: click.Context, /, name: str | None, as_json: bool) -> None:
    """Show the options of COMMAND, with the value and the source of each value.

    The source is a line of a file, such as llmb.toml:3, a variable, such as LLMB_RUN_PRECISION, or
    llmb's default. Options of the command line win over all of them. Without COMMAND: the options
    of every command that a file or a variable sets.
    """
    from llmb.cli import COMMANDS
    from llmb.cli.settings_file import COMMANDS as IN_FILES

    if name is not None and name not in COMMANDS:
        raise UsageError(f"COMMAND {name!r}: no such command{did_you_mean(name, COMMANDS)}")
    names = [name] if name is not None else [one for one in IN_FILES if one in COMMANDS]
    found = {one: _settings_of(ctx, one) for one in names}
    if name is None:
        found = {one: [s for s in rows if s.source != "default"] for one, rows in found.items()}
    if as_json:
        data = {one: [_as_json(row) for row in rows] for one, rows in found.items()}
        click.echo(json.dumps({"schema": "llmb.settings/1", "commands": data}, indent=1))
        return
    shown = {one: rows for one, rows in found.items() if rows}
    if name is not None and not shown:
        click.echo(f"llmb {name} has no options of its own")
    elif not shown:
        click.echo("no file and no variable sets an option: every value is llmb's default")
    for one, rows in shown.items():
        _print(one, rows)


def _settings_of(ctx: click.Context, name: str) -> list[settings.Setting]:
    """Return the settings of the command ``name``, as the command would see them."""
    root = ctx.find_root()
    assert isinstance(root.command, click.Group)
    command = root.command.get_command(root, name)
    assert command is not None
    with click.Context(
        root.command, info_name=root.info_name, auto_envvar_prefix=_prefix(root)
    ) as top:
        if not root.params.get("isolated"):
            settings.load(top, name, command)
        with command.make_context(name, [], parent=top, resilient_parsing=True) as context:
            return [*settings.settings(context)]


def _prefix(root: click.Context) -> str | None:
    return None if root.params.get("isolated") else settings.PREFIX


def _as_json(row: settings.Setting) -> dict[str, Any]:
    value = row.value
    if isinstance(value, tuple):
        value = [str(item) for item in value]
    elif value is not None and not isinstance(value, (bool, int, float)):
        value = str(value)
    return {"option": row.option, "value": value, "source": row.source}


def _print(name: str, rows: list[settings.Setting]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column(f"llmb {name}", no_wrap=True)
    table.add_column("value", overflow="fold")
    table.add_column("from", overflow="fold")
    for row in rows:
        style = "dim" if row.source == "default" else ""
        cells = (f"--{row.option}", _words(row.value), printable(row.source))
        table.add_row(*(Text(cell, style) for cell in cells))
    Console(highlight=False).print(table)


def _words(value: Any) -> str:
    if value is None or value == ():
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return printable(", ".join(map(str, value)) if isinstance(value, tuple) else str(value))
