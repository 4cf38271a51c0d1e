"""Prints a sweep: a row per point, reasons below, and the command for a submission."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

from llmb.cli.tables import print_fitted
from llmb.cli.text import printable
from llmb.measure.statistics import LEAST_SHOWN
from llmb.records.sweep_overview import MeasuredPoint, Overview, PointState
from llmb.sweep.overview import missing

if TYPE_CHECKING:
    from rich.console import JustifyMethod

_NOT_MEASURED = "not measured"
_COLUMNS: tuple[tuple[str, JustifyMethod], ...] = (
    ("", "left"),
    ("precision", "left"),
    ("batch size", "right"),
    ("tokens/s", "right"),
    ("95 % interval", "left"),
    ("of ceiling", "right"),
    ("peak memory", "right"),
    ("verdict", "left"),
    ("class", "left"),
)
_WORDS = {
    "out_of_memory": "out of memory",
    "predicted_out_of_memory": "out of memory",
    "failed": "failed",
    "not_tried": "not tried",
    "unfinished": "to be run",
}
#: Marks of the fastest run of a precision, and of runs that may be as fast.
_BEST, _TIED = "*", "="
#: Columns that may be left out, the least important first, and the width in a pipe.
_LEAST, _WIDE = ("class", "peak memory", "of ceiling", "95 % interval"), 140


def print_overview(overview: Overview, folder: Path, *, wide: bool = False) -> None:
    """Print the sweep in ``folder`` to stdout."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=max(_WIDE, console.width))
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for title, justify in _COLUMNS:
        table.add_column(title, justify=justify, overflow="fold", no_wrap=title != "precision")
    for state in overview.points:
        mark = _mark(overview, state)
        style = "bold" if mark == _BEST else "" if state.measured else "dim"
        table.add_row(*(Text(printable(cell)) for cell in _cells(state, mark)), style=style)
    print_fitted(table, _LEAST, wide=wide, piped=_WIDE)
    for text in _notes(overview):
        console.print(Text(printable(text), style="dim"), soft_wrap=True)
    for text in ("", *_hand_in(overview, folder), *_files(folder)):
        console.print(Text(printable(text)), soft_wrap=True)


def _mark(overview: Overview, state: PointState) -> str:
    """Return the mark of the fastest run of a precision, of a tied run, or nothing."""
    if state.run is None:
        return ""
    if overview.best.get(state.precision) == state.run:
        return _BEST
    return _TIED if state.run in overview.tied.get(state.precision, ()) else ""


def _cells(state: PointState, mark: str) -> tuple[str, ...]:
    found = state.measured
    if found is None:
        size = "auto" if state.batch_size is None else f"{state.batch_size:,}"
        return ("", state.precision, size, _WORDS[state.status], "", "", "", "", "")
    return (
        mark,
        _precision(state, found),
        f"{found.batch_size:,}{' (auto)' if state.batch_size is None else ''}",
        f"{found.tokens_per_second:,.2f}",
        _interval(found),
        _NOT_MEASURED if found.fraction_of_ceiling is None else f"{found.fraction_of_ceiling:.1%}",
        _NOT_MEASURED
        if found.peak_memory_bytes is None
        else f"{found.peak_memory_bytes / 1e9:.2f} GB",
        found.verdict.value,
        found.class_,
    )


def _interval(found: MeasuredPoint) -> str:
    if found.ci95 is None:
        return _NOT_MEASURED
    if found.interval_values < LEAST_SHOWN:
        return "none (--repeats 5)"
    return f"{found.ci95[0]:,.2f} to {found.ci95[1]:,.2f}"


def _precision(state: PointState, found: MeasuredPoint) -> str:
    effective = found.effective_precision
    same = effective in (None, state.precision)
    return state.precision if same else f"{state.precision}, effective {effective}"


def _notes(overview: Overview) -> Iterator[str]:
    if overview.best:
        yield f"{_BEST} the fastest of its precision"
    if overview.tied:
        yield (
            f"{_TIED} tied with the fastest: the 95 % intervals overlap, so either may be faster; "
            "--repeats 5 tells more"
        )
    if any(s.measured and s.measured.interval_values < LEAST_SHOWN for s in overview.points):
        yield f"none: fewer than {LEAST_SHOWN} repeats or fence blocks give no interval to print"
    for state in overview.points:
        if state.message is not None and state.status != "not_tried":
            yield f"{state.point}: {state.message}"
    for each in overview.plan.left_out:
        yield f"{each.name} is left out: {each.reason}"


def _hand_in(overview: Overview, folder: Path) -> Iterator[str]:
    """Yield the command for a submission of the best runs, or the obstacle."""
    if not overview.best or overview.unfinished:
        return
    best = [s for s in overview.points if s.run and overview.best.get(s.precision) == s.run]
    if any(state.measured and state.measured.class_ == "debug" for state in best):
        yield "debug runs cannot be handed in: leave out what makes them so (llmb show RUN says it)"
        return
    words = ["llmb", "package-submission", *(str(folder / str(state.run)) for state in best)]
    words += ["--submitter", "you", "--system", "this-machine"]
    for name, reason in missing(overview).items():
        words += ["--missing", f"{name}={reason}"]
    yield "to hand in the best run of each precision:"
    yield f"  {shlex.join(words)}"


def _files(folder: Path) -> Iterator[str]:
    figure = folder / "sweep.svg"
    yield f"sweep directory: {folder}" + (f", figure: {figure.name}" if figure.exists() else "")
