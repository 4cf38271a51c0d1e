"""``llmb workload check``: every fault of a workload file with its line, or its sizes and work."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

import click

from llmb.errors import UsageError
from llmb.records.printable import printable

if TYPE_CHECKING:
    from llmb.workloads.definition import WrittenKey


@click.command("check", short_help="Check the file of a workload, line by line.")
@click.argument("file", type=click.Path(path_type=Path))
def command(file: Path) -> None:
    """Check workload FILE: print each fault with its line, or parameters, FLOPs and memory.

    With faults the exit code is 2.

    \b
    llmb workload new mine --family gpt2
    llmb workload check mine.json
    """
    from llmb.cli.run import workload_of
    from llmb.cli.workload import print_sizes
    from llmb.workloads import find
    from llmb.workloads.definition import entries, read_text
    from llmb.workloads.facts import facts

    if file.suffix != ".json":
        raise UsageError(f"{file}: the name of a workload file ends in .json, such as mine.json")
    text = read_text(file)
    try:
        found = entries(text)
    except json.JSONDecodeError as error:
        told = [(error.lineno, f"not JSON: {error.msg}, column {error.colno}{_hint(text, error)}")]
    else:
        told = sorted(_faults(file.stem, found))
    for line, fault in told:
        click.echo(f"{file}:{line}: {printable(fault)}")
    if told:
        raise UsageError(f"{file}: {len(told)} fault{'s' * (len(told) > 1)}: docs/workloads.md")
    name, definition = workload_of(str(file))
    print_sizes(facts(find(name, {}, definition)))
    click.echo(f"\n{file}: no fault. Next:")
    click.echo(f"  llmb run --workload {quote(str(file))} --preset debug")


def _hint(text: str, error: json.JSONDecodeError) -> str:
    """Return advice for a comment of another language; else nothing."""
    line = text.splitlines()[error.lineno - 1] if text else ""
    if line.lstrip().startswith(("//", "#", "/*")):
        return '; JSON has no comments: write "//": "a comment", as a key'
    return ""


def _faults(name: str, found: list[WrittenKey]) -> Iterator[tuple[int, str]]:
    """Yield line and words of each fault; a missing key stands in line 1."""
    from llmb import workloads
    from llmb.workloads.definition import definition_of, repeated

    lines = {entry.key: entry.line for entry in found}
    whole = {entry.key: entry.value for entry in found}
    names = [] if "name" in whole else [workloads.why_no_name(name)]
    yield from ((1, text) for text in names if text)
    for fault in (*repeated(found), *workloads.faults({**whole, **definition_of(found)})):
        yield lines.get(fault.key, 1), fault.text
