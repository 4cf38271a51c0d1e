"""``llmb compare --baseline``: runs beside a run or a branch of the history, for CI."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from llmb.cli.settings import runs_folder
from llmb.cli.text import printable

if TYPE_CHECKING:
    from llmb.history.baseline import BaselineDecision, Chosen
    from llmb.history.line import HistoryLine

Form = Literal["text", "json", "github", "junit"]
FORMS = ("text", "json", "github", "junit")
#: Value of ``--fail-on`` -> the outcome of a decision that ends with exit code 7.
FAILS = {"regression": "regression", "undecided": "not decided"}
USUAL_LAST = 10
#: Before the name of a branch, if a run has the same name.
_BRANCH = "branch:"
_PIPED_WIDTH = 100


@dataclass(frozen=True)
class BaselineOptions:
    """The options of a comparison with a baseline."""

    name: str
    #: File of the history; None: beside the first run, else ``runs/history.jsonl``.
    history: Path | None
    last: int
    by: float
    chosen: Chosen
    fail_on: tuple[str, ...]
    form: Form


def compare(paths: Sequence[Path], options: BaselineOptions) -> None:
    """Compare each run of ``paths`` with the baseline, print, and exit with 7 for a failure.

    Raises:
        RequirementError: a decision is one of ``options.fail_on``.
        UsageError: neither a run nor a branch has the baseline's name, or a run is INVALID.
    """
    from llmb.errors import RequirementError, UsageError
    from llmb.history.baseline import decide
    from llmb.records.finding import Verdict

    runs = [_line(path) for path in paths]
    lines = _baseline(options, paths)
    decided = [
        decide(
            run, options.name, _last(lines, run, options.last), by=options.by, chosen=options.chosen
        )
        for run in runs
    ]
    _print(decided, options)
    failing = {FAILS[each] for each in options.fail_on}
    failed = [one for one in decided if one.outcome in failing]
    if failed:
        said = "; ".join(f"{one.run.run}: {one.conclusion}" for one in failed)
        raise RequirementError(f"{len(failed)} of {len(decided)} runs: {said}")
    invalid = [run.run for run in runs if run.verdict is Verdict.INVALID]
    if invalid:
        raise UsageError(f"{', '.join(invalid)}: INVALID, so there is no figure to compare")


def _line(path: Path) -> HistoryLine:
    from llmb.history.line import line_of_a_stranger
    from llmb.records.bundle import read_record

    return line_of_a_stranger(read_record(path), path.resolve().name)


def _baseline(options: BaselineOptions, paths: Sequence[Path]) -> list[HistoryLine]:
    """Return the lines that the baseline's name means: one run, or all runs of a branch."""
    from llmb.errors import UsageError
    from llmb.history import file

    if not options.name.startswith(_BRANCH) and (run := _named_run(options.name)) is not None:
        return [_line(run)]
    branch = options.name.removeprefix(_BRANCH)
    place = options.history or _place(paths)
    history = file.read(place)
    if history.skipped:
        click.echo(f"llmb: {printable(str(place))}: {history.skipped_words}", err=True)
    found = [line for line in history.lines if line.branch == branch]
    if not found and not options.name.startswith(_BRANCH):
        known = sorted({line.branch for line in history.lines if line.branch is not None})
        others = f"; branches: {', '.join(known)}" if known else ""
        if _is_likely_path(options.name):
            raise UsageError(
                f"--baseline {options.name}: no run there, and no branch of {place}{others}"
            )
    return found


def _named_run(name: str) -> Path | None:
    """Return the run called ``name``, such as ``latest~1`` or a tag; None without such a run."""
    from llmb.errors import UsageError
    from llmb.records.run_names import find_run

    try:
        found = find_run(name, runs_folder(click.get_current_context(silent=True)))
    except UsageError:
        return None
    return found if _is_run(found) else None


def _is_likely_path(name: str) -> bool:
    return Path(name).exists() or name.endswith((".zip", ".json"))


def _is_run(path: Path) -> bool:
    """Tell whether a run, a record or a bundle is at ``path``."""
    from llmb.records.bundle import MANIFEST, RECORD

    return path.is_file() or any((path / name).exists() for name in (MANIFEST, RECORD))


def _place(paths: Sequence[Path]) -> Path:
    from llmb.history.file import FILE

    beside = paths[0].resolve().parent / FILE
    folder = runs_folder(click.get_current_context(silent=True))
    return beside if beside.exists() else folder / FILE


def _last(lines: Sequence[HistoryLine], run: HistoryLine, count: int) -> list[HistoryLine]:
    """Return the newest ``count`` lines of the work of ``run``; without such a line, all."""
    from llmb.history.series import series_of

    others = [line for line in lines if line.run_id != run.run_id]
    of_it = [one for one in series_of(others) if one.lines[0].work == run.work]
    return list(of_it[0].lines[-count:]) if of_it else others


def _print(decided: Sequence[BaselineDecision], options: BaselineOptions) -> None:
    from llmb.records.canonical import as_json
    from llmb.report import baseline_formats

    if options.form == "json":
        click.echo(json.dumps([as_json(one) for one in decided], indent=1))
    elif options.form == "github":
        click.echo(baseline_formats.markdown(decided), nl=False)
    elif options.form == "junit":
        failing = {FAILS[each] for each in options.fail_on}
        click.echo(baseline_formats.junit(decided, failing), nl=False)
    else:
        _print_text(decided)


def _print_text(decided: Sequence[BaselineDecision]) -> None:
    from rich.console import Console
    from rich.text import Text

    from llmb.history.baseline import percent

    console = Console(highlight=False, width=None if sys.stdout.isatty() else _PIPED_WIDTH)
    styles = {"regression": "bold red", "improvement": "bold green"}
    for one in decided:
        run = one.run
        console.print(Text(printable(f"run       {run.run}"), style="bold"))
        console.print(Text(printable(f"work      {run.workload} {run.mode}, {run.settings}")))
        rate = f"{run.tokens_per_second:,.2f} tokens/s"
        if one.tokens_change is not None:
            rate += f", {percent(one.tokens_change)}"
        if one.ceiling_change is not None:
            rate += f"; ceiling {percent(one.ceiling_change)}"
        console.print(Text(f"measured  {rate}"))
        runs = f"{len(one.runs)} run{'' if len(one.runs) == 1 else 's'}"
        console.print(Text(printable(f"baseline  {one.baseline}: {runs}")))
        style = styles.get(one.outcome, "bold")
        console.print(Text(printable(one.conclusion), style=style), soft_wrap=True)
        for note in one.notes:
            console.print(Text(printable(f"note: {note}"), style="dim"), soft_wrap=True)
