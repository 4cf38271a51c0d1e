"""``llmb list``: the runs in a folder, one line each, the newest last as in ``ls``."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from llmb.cli import completion
from llmb.cli.run_name import runs_folder_option
from llmb.cli.settings import runs_folder
from llmb.cli.text import printable
from llmb.errors import UsageError
from llmb.records.run_list import VERDICTS

if TYPE_CHECKING:
    from llmb.records.run_list import RunLine

#: Titles of columns that a narrow terminal leaves out, the least important first. The name of a
#: run directory has the time, the workload, the format and the plugin.
_LEAST = (
    "UTC",
    "note",
    "device",
    "plugin",
    "precision",
    "workload",
    "class",
    "95 %",
    "tags",
)
_COLOURS = {"INVALID": "red", "FLAGGED": "yellow", "CONSISTENT": "green"}
_FILTERS = ("workload", "precision", "plugin", "verdict")


@click.command("list", short_help="List the runs here, the newest last.")
@runs_folder_option("Folder with the runs to list")
@click.option(
    "--workload",
    metavar="PATTERN",
    shell_complete=completion.workloads,
    help="Only this workload; * and ? are wildcards.",
)
@click.option("--precision", metavar="PATTERN", help="Only this number format, such as BF16.")
@click.option(
    "--plugin",
    metavar="PATTERN",
    shell_complete=completion.plugins,
    help="Only this vendor plugin, such as cpu.",
)
@click.option(
    "--verdict",
    type=click.Choice(VERDICTS, case_sensitive=False),
    help="Only runs with this verdict.",
)
@click.option("--tag", metavar="TAG", shell_complete=completion.tags, help="Only runs with TAG.")
@click.option("--last", type=click.IntRange(min=1), metavar="N", help="Only the newest N of these.")
@click.option("--wide", is_flag=True, help="Show every column, wider than the terminal if need be.")
@click.option("--json", "as_json", is_flag=True, help="Print the list as JSON.")
@click.pass_context
def command(
    ctx: click.Context,
    /,
    output_dir: Path | None,
    tag: str | None,
    last: int | None,
    wide: bool,
    as_json: bool,
    **wanted: str | None,
) -> None:
    """List the run directories of `llmb run`, with time, figures, verdict and tags.

    The newest run is the last line, above the prompt, as in `ls` and in a log. Debug runs and runs
    without a result are listed too. The figures come from the records; `llmb verify` checks a
    record. A folder inside of runs, such as a sweep, has a list of its own: --output-dir.

    \b
    Examples:
      llmb list
      llmb list --workload llama-45m --precision BF16 --last 5
      llmb list --tag nightly --json
    """
    from llmb.records.run_list import line_of
    from llmb.records.run_names import runs_in

    chosen = runs_folder(ctx) if output_dir is None else output_dir
    if output_dir is not None and not output_dir.is_dir():
        raise UsageError(f"--output-dir {output_dir}: there is no such folder")
    found = runs_in(chosen)
    tagged = [run for run in found if tag is None or tag in run.tags]
    filtered = any(wanted[name] is not None for name in _FILTERS)
    # Without filters on the record the newest N are known before any record is read.
    lines = [line_of(run) for run in (tagged[-last:] if last and not filtered else tagged)]
    lines = [line for line in lines if _fits(line, wanted)][-(last or 0) :]
    if as_json:
        click.echo(json.dumps({"schema": "llmb.list/1", "runs": [*map(_as_json, lines)]}, indent=1))
        return
    if lines:
        room = shutil.get_terminal_size().columns if sys.stdout.isatty() and not wide else None
        for text in table(lines, room):
            click.echo(text)
    else:
        click.echo(_nothing(chosen, len(found)))


def _fits(line: RunLine, wanted: dict[str, str | None]) -> bool:
    """Tell whether a line fits every filter; a run without a record fits no filter."""
    for name in _FILTERS:
        pattern, value = wanted[name], getattr(line, name)
        if pattern is not None and (value is None or not fnmatchcase(value, pattern)):
            return False
    return True


def _nothing(folder: Path, count: int) -> str:
    place = printable(str(folder))
    if count:
        return f"none of the {count} runs in {place} fits; `llmb list` shows every run"
    return f"no run in {place}; `llmb run --preset debug` makes a run in seconds"


def _as_json(line: RunLine) -> dict[str, Any]:
    """Return a line as JSON data; every text of a record is escaped."""
    fields = ("created_utc", "workload", "mode", "precision", "plugin", "device")
    texts = {name: getattr(line, name) for name in fields}
    return {
        "name": printable(line.name),
        "path": printable(str(line.path)),
        **{name: text if text is None else printable(text) for name, text in texts.items()},
        "class": None if line.run_class is None else printable(line.run_class),
        "tokens_per_second": line.tokens_per_second,
        "ci95": line.shown_ci95,
        "verdict": None if line.verdict is None else printable(line.verdict),
        "tags": list(line.tags),
        "note": None if line.note is None else printable(line.note),
    }


def table(lines: Sequence[RunLine], room: int | None) -> Iterator[str]:
    """Yield the lines of the table, ``room`` columns wide at most; None: every column.

    rich takes 2 s of CPU for 1,000 runs, this function takes 0.1 s.
    """
    columns = {title: [title, *cells] for title, cells in _columns(lines) if any(cells)}
    widths = {title: max(map(_width, cells)) for title, cells in columns.items()}
    left_out = []
    for title in _LEAST:
        if room is None or sum(widths.values()) + 2 * len(widths) - 2 <= room:
            break
        if widths.pop(title, None) is not None:
            left_out.append(title)
    for number in range(len(lines) + 1):
        cells = ((title, columns[title][number], width) for title, width in widths.items())
        line = "  ".join(_padded(title, text, width) for title, text, width in cells).rstrip()
        yield line if number else click.style(line, bold=True)
    if left_out:
        named = ", ".join(left_out)
        yield click.style(f"not shown: {named} (--wide)", dim=True)


def _width(text: str) -> int:
    """Return the columns of ``text`` on a terminal: 2 for a Chinese letter."""
    from rich.cells import cell_len

    return cell_len(text)


def _padded(title: str, text: str, width: int) -> str:
    """Return a cell of ``width`` columns; a verdict is coloured."""
    spaces = " " * (width - _width(text))
    if title in ("tokens/s", "95 %"):
        return spaces + text
    return (click.style(text, fg=_COLOURS[text]) if text in _COLOURS else text) + spaces


def _columns(lines: Sequence[RunLine]) -> Iterator[tuple[str, list[str]]]:
    """Yield title and cells of every column, escaped for a terminal."""
    yield "UTC", [printable(line.created_utc[:16].replace("T", " ")) for line in lines]
    yield "name", [printable(line.name) for line in lines]
    for name in ("workload", "precision", "plugin", "device"):
        yield name, [printable(getattr(line, name) or "") for line in lines]
    yield "tokens/s", [_rate(line.tokens_per_second) for line in lines]
    yield "95 %", [_half_width(line) for line in lines]
    yield "class", [printable(line.run_class or "") for line in lines]
    yield "verdict", [printable(line.verdict or line.state) for line in lines]
    yield "tags", [" ".join(line.tags) for line in lines]
    yield "note", [printable(line.note or "") for line in lines]


def _rate(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if 1000 <= value < 1e12 else f"{value:.4g}"


def _half_width(line: RunLine) -> str:
    """Return half of the 95 % interval, over the figure. Example: ``±0.4 %``."""
    ends = line.shown_ci95
    if ends is None or not line.tokens_per_second:
        return ""
    return f"±{50 * (ends[1] - ends[0]) / line.tokens_per_second:.2g} %"
