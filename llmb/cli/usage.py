"""The answer to a wrong command line: the fault in a line, the nearest right names in a second."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import click

from llmb.cli.text import printable
from llmb.errors import nearest

#: Option of other benchmarks and trainers -> option of ``llmb run`` with the same meaning.
SYNONYMS = {
    "--bs": "--batch-size",
    "--bsz": "--batch-size",
    "--dtype": "--precision",
    "--epochs": "--timed-steps",
    "--gpus": "--nproc",
    "--iterations": "--timed-steps",
    "--max-steps": "--timed-steps",
    "--model": "--workload",
    "--nproc-per-node": "--nproc",
    "--output": "--output-dir",
    "--seq-len": "--sequence-length",
    "--steps": "--timed-steps",
}


def lines(error: click.ClickException, commands: Sequence[str]) -> Iterator[str]:
    """Yield the fault of the command line; then the nearest right names, if any name is near.

    Example: ``--precison: there is no such option`` and ``did you mean --precision?``. A group
    without a command, such as ``llmb plugin``, is answered with the group's help.
    """
    context = getattr(error, "ctx", None)
    # Click 8.2 and later; 8.1 prints the help itself.
    if type(error).__name__ == "NoArgsIsHelpError" and context is not None:
        yield from context.get_help().splitlines()
        return
    said, typed, known = _said(error, commands)
    yield f"llmb: {printable(said)}"
    near = [SYNONYMS[typed]] if SYNONYMS.get(typed) in known else nearest(typed, known)
    if near:
        yield f"did you mean {' or '.join(near)}?"


def _said(error: click.ClickException, commands: Sequence[str]) -> tuple[str, str, list[str]]:
    """Return the fault in words, the typed word, and all right words."""
    context = getattr(error, "ctx", None)
    if isinstance(error, click.NoSuchOption):
        known = [] if context is None else _options(context.command)
        return f"{error.option_name}: there is no such option", error.option_name, known
    if isinstance(error, click.BadParameter) and isinstance(error.param, click.Parameter):
        choices = (
            list(error.param.type.choices) if isinstance(error.param.type, click.Choice) else []
        )
        typed = error.message.partition("'")[2].partition("'")[0]
        return _one_line(error.format_message()), typed if choices else "", list(map(str, choices))
    text = _one_line(error.format_message()).partition(" Did you mean")[0]  # click's own
    typed = text.partition("No such command '")[2].partition("'")[0]
    group = None if context is None else context.command
    if isinstance(group, click.Group) and context is not None and context.parent is not None:
        commands = group.list_commands(context)
    return text, typed, list(commands) if typed else []


def _options(command: click.Command) -> list[str]:
    return [name for param in command.params for name in (*param.opts, *param.secondary_opts)]


def _one_line(text: str) -> str:
    return " ".join(text.split())
