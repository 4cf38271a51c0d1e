"""Help in named groups: the most used options first, all options by ``--help-all``.

rich-click and cloup were considered: both have groups, neither has a short and a full help.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import click

#: Columns for name and value of an option; a longer name has a separate line.
_COLUMNS = 28


class GroupedOption(click.Option):
    """An option of a named group; an option without a group is among the most used."""

    def __init__(self, *args: Any, group: str = "", **settings: Any) -> None:
        """Take click's arguments, and the title of the ``group``. Example: ``Ranks``."""
        super().__init__(*args, **settings)
        self.group = group

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        """Return name and text, without click's range, such as ``[x>=1]``."""
        record = super().get_help_record(ctx)
        return None if record is None else (record[0], record[1].partition("  [")[0])


class GroupedCommand(click.Command):
    """A command with a short help, and the full help by ``--help-all``."""

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """Return the parameters, with ``--help-all`` in front of ``--help``."""
        *params, last = super().get_params(ctx)
        return [*params, _help_all(), last]

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the most used options; the groups by name, or with their options."""
        shown, groups = _split(self.get_params(ctx))
        with formatter.section("Options"):
            formatter.write_dl(_records(shown, ctx), col_max=_COLUMNS)
        if ctx.meta.get(__name__):
            for title, options in groups.items():
                with formatter.section(title):
                    formatter.write_dl(_records(options, ctx), col_max=_COLUMNS)
        else:
            with formatter.indentation():
                formatter.write_paragraph()
                formatter.write_text(f"More by --help-all: {', '.join(groups)}.")


def _split(
    params: Sequence[click.Parameter],
) -> tuple[list[click.Parameter], dict[str, list[click.Parameter]]]:
    """Return the most used options, and the further options by title of the group."""
    shown: list[click.Parameter] = []
    groups: dict[str, list[click.Parameter]] = {}
    for param in params:
        title = getattr(param, "group", "")
        (groups.setdefault(title, []) if title else shown).append(param)
    return shown, groups


def _records(params: Sequence[click.Parameter], ctx: click.Context) -> list[tuple[str, str]]:
    found = (param.get_help_record(ctx) for param in params)
    return [record for record in found if record is not None]


def _help_all() -> click.Option:
    def show(ctx: click.Context, _: click.Parameter, asked: bool) -> None:
        if asked and not ctx.resilient_parsing:
            ctx.meta[__name__] = True
            click.echo(ctx.get_help(), color=ctx.color)
            ctx.exit()

    text = "Show every option in groups and exit."
    return click.Option(
        ["--help-all"], is_flag=True, is_eager=True, expose_value=False, callback=show, help=text
    )


def write_groups(
    formatter: click.HelpFormatter, groups: Mapping[str, Mapping[str, tuple[str, str]]]
) -> None:
    """Write commands by purpose. Example: group ``Measure`` -> ``run`` -> module and help line."""
    widest = max(len(name) for commands in groups.values() for name in commands)
    for title, commands in groups.items():
        with formatter.section(title):
            formatter.write_dl(
                [(f"{name:<{widest}}", text) for name, (_, text) in commands.items()]
            )
