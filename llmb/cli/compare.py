"""``llmb compare``: runs beside a base run, and conditions for a contract."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from llmb.cli import completion
from llmb.cli.text import printable

if TYPE_CHECKING:
    from rich.console import Console

    from llmb.comparison.compare import Comparison
    from llmb.comparison.figures import Run
    from llmb.comparison.requirements import Decision, Requirement

#: Width of a table outside of a terminal, in columns.
_PIPED_WIDTH = 120
_MOST_ON_A_PAGE = 8


@click.command("compare", short_help="Compare runs with a base run, and require conditions.")
@click.argument(
    "paths",
    metavar="BASE [RUN]...",
    nargs=-1,
    required=True,
    type=Path,
    shell_complete=completion.run_directories,
)
@click.option(
    "--require",
    "texts",
    multiple=True,
    metavar="CONDITION",
    help="Condition for every RUN, such as 'tokens_per_second>=0.95*base'; repeatable.",
)
@click.option(
    "--requirements",
    "file",
    type=click.Path(path_type=Path),
    help="A TOML file of conditions: require = ['verdict==CONSISTENT', ...].",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option(
    "--html",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Also write a page of two to eight runs to FILE.",
)
def command(
    paths: tuple[Path, ...],
    texts: tuple[str, ...],
    file: Path | None,
    as_json: bool,
    html: Path | None,
) -> None:
    """Compare runs with BASE: run directories, record.json files, or bundles (folders or zips).

    Every ratio is RUN over BASE with the 95 % interval. Different work is refused (exit code 2);
    runs that docs/rules.md keeps apart are shown and marked. A condition is NAME OPERATOR VALUE;
    the value is a number, a number*base, or a name, such as 0.95*base. The worse end of the
    interval decides. Exit code 7 for an unmet condition. With conditions, a single run is allowed;
    with several, the conditions hold for every RUN, not for BASE. Verdicts come from the records:
    `llmb verify` checks a record.

    \b
    Examples:
      llmb compare runs/20261101T120000Z-llama-1.4b-BF16-cpu runs/20261102T09*
      llmb compare old.zip new.zip --require 'tokens_per_second>=0.95*base'
      llmb compare new.zip --require 'verdict==CONSISTENT' --require 'tokens_per_second>=50000'
      llmb compare old.zip new.zip --requirements contract.toml --json
      llmb compare old.zip new.zip newer.zip --html compared.html
    """
    from llmb.comparison import requirements as conditions
    from llmb.comparison.compare import compare_runs
    from llmb.comparison.data import compare_report
    from llmb.comparison.figures import run_of
    from llmb.records.bundle import read_record
    from llmb.records.canonical import as_json as as_json_data

    required = [conditions.parse(text) for text in texts]
    required += conditions.from_file(file) if file is not None else ()
    if len(paths) == 1 and not required:
        raise click.UsageError("name a second run to compare with, or a condition (--require)")
    if html is not None and not 2 <= len(paths) <= _MOST_ON_A_PAGE:
        raise click.UsageError(f"--html: for 2 to {_MOST_ON_A_PAGE} runs, not for {len(paths)}")
    runs = [run_of(read_record(path)) for path in paths]
    conditions.check_names(required, runs)
    if len(runs) == 1:
        decided = [_decide(required, runs[0], None)]
        found: list[Comparison] = []
    else:
        found = [compare_runs(runs[0], run) for run in runs[1:]]
        decided = [_decide(required, one.other, one) for one in found]
    names = [printable(str(path)) for path in paths]
    if html is not None:
        from llmb.cli import pages
        from llmb.report.compare_page import compare_page

        page = compare_page(names, runs, found, decided)
        pages.put_for_user(html, page, say=not as_json)
    if as_json:
        report = compare_report(names, runs, found, decided)
        click.echo(json.dumps(as_json_data(report), indent=1))
    else:
        _print(names, runs, found, decided)
    _end(names[-len(decided) :], found, decided)


def _decide(required: list[Requirement], run: Run, comparison: Comparison | None) -> list[Decision]:
    from llmb.comparison.requirements import decide

    return [decide(requirement, run, comparison) for requirement in required]


def _end(names: list[str], found: list[Comparison], decided: list[list[Decision]]) -> None:
    """Exit with code 7 for an unmet condition, 2 for a refused comparison, or 0."""
    from llmb.errors import RequirementError, UsageError

    missed = [
        f"{one.requirement.text} ({name}: {one.why})"
        for name, decisions in zip(names, decided, strict=True)
        for one in decisions
        if one.met is False
    ]
    count = sum(map(len, decided))
    if missed:
        raise RequirementError(f"{len(missed)} of {count} conditions not met: {'; '.join(missed)}")
    refused = [
        f"{name} is not compared: {'; '.join(map(str, one.refusals))}"
        for name, one in zip(names, found, strict=False)
        if one.refusals
    ]
    if refused:
        raise UsageError("; ".join(refused))


def _print(
    names: list[str], runs: list[Run], found: list[Comparison], decided: list[list[Decision]]
) -> None:
    """Print tables for people."""
    from rich.console import Console

    console = Console(highlight=False, width=None if sys.stdout.isatty() else _PIPED_WIDTH)
    _head(console, "base" if found else "run", names[0], runs[0])
    if not found:
        _print_decisions(console, decided[0])
    for name, one, decisions in zip(names[1:], found, decided, strict=False):
        console.print()
        _head(console, "run", name, one.other)
        _print_comparison(console, one)
        _print_decisions(console, decisions)


def _head(console: Console, role: str, name: str, run: Run) -> None:
    from rich.text import Text

    record = run.record
    label = "OFFICIAL" if record.class_ == "official" else "DEBUG, not comparable"
    effective = record.precision.effective or f"{record.precision.declared} declared"
    console.print(Text(f"{role}  {name}", style="bold"), soft_wrap=True)
    what = f"{record.workload.name} {record.workload.mode}, {effective}, {record.plugin.name}"
    text = f"      {printable(what)}   [{label}, {record.audit.verdict.value}]"
    console.print(Text(text), soft_wrap=True)


def _print_comparison(console: Console, one: Comparison) -> None:
    from rich.text import Text

    from llmb.comparison.comparability import Weight

    styles = {Weight.REFUSED: "red", Weight.NOT_COMPARABLE: "red", Weight.NOTED: "dim"}
    for difference in one.differences:
        line = f"{difference.weight.value}: {printable(str(difference))}"
        console.print(Text(line, style=styles[difference.weight]), soft_wrap=True)
    if one.refusals:
        return
    console.print(_table(one))
    for left in one.left_out:
        line = f"not compared: {left.name} ({left.reason})"
        console.print(Text(printable(line), style="dim"), soft_wrap=True)
    if one.steps is not None:
        console.print(Text(one.steps.words), soft_wrap=True)
    for sentence in one.conclusion:
        console.print(Text(sentence, style="bold"), soft_wrap=True)


def _table(one: Comparison) -> Any:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for title in ("figure", "base", "run", "ratio", "95 % interval", "the run is"):
        table.add_column(title, justify="left" if title in ("figure", "the run is") else "right")
    for ratio in one.ratios:
        interval = ratio.interval
        table.add_row(
            Text(f"{ratio.name} [{ratio.unit}]" if ratio.unit else ratio.name),
            _number(ratio.base),
            _number(ratio.other),
            f"{ratio.ratio:.4f}",
            "" if interval is None else f"{interval[0]:.4f} to {interval[1]:.4f}",
            ratio.outcome,
        )
    return table


def _number(value: float) -> str:
    return f"{value:,.2f}" if 100 <= value < 1e9 else f"{value:.4g}"


def _print_decisions(console: Console, decisions: list[Decision]) -> None:
    from rich.text import Text

    words = {True: ("met", "green"), False: ("NOT MET", "red"), None: ("not decided", "red")}
    for one in decisions:
        word, style = words[one.met]
        line = f"{word}: {one.requirement.text} ({printable(one.why)})"
        console.print(Text(line, style=style), soft_wrap=True)
