"""``llmb compare``: runs beside a base run, and conditions for a contract."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from llmb.cli import baseline as baseline_of
from llmb.cli.amounts import Share
from llmb.cli.run_name import RunName
from llmb.cli.tables import PIPED_WIDTH, print_fitted, wide_option
from llmb.cli.text import printable

if TYPE_CHECKING:
    from rich.console import Console

    from llmb.comparison.compare import Comparison
    from llmb.comparison.figures import Run
    from llmb.comparison.requirements import Decision, Requirement

#: Columns of the table that may be left out, the least important first.
_LEAST = ("95 % interval", "base", "run")
_MOST_ON_A_PAGE = 8


@click.command("compare", short_help="Compare runs with a base run, and require conditions.")
@click.argument("paths", metavar="[BASE] [RUN]...", nargs=-1, required=True, type=RunName())
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
@wide_option
@click.option(
    "--baseline",
    metavar="NAME",
    help="Compare every RUN with a run, or with the last runs of a branch of the history.",
)
@click.option(
    "--fail-on",
    "fail_on",
    type=click.Choice([*baseline_of.FAILS]),
    multiple=True,
    help="With --baseline: exit code 7 for this outcome; repeatable.",
)
@click.option(
    "--by",
    type=Share(),
    default="0%",
    metavar="SHARE",
    help="With --baseline: the smallest step that counts, such as 3% [default: 0%].",
)
@click.option(
    "--last",
    type=click.IntRange(min=1),
    default=baseline_of.USUAL_LAST,
    metavar="N",
    help="With --baseline: the newest N runs of the branch [default: 10].",
)
@click.option(
    "--history",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="With --baseline: the history [default: history.jsonl beside RUN, or in runs].",
)
@click.option(
    "--measure",
    type=click.Choice(["auto", "tokens", "share"]),
    default="auto",
    help="With --baseline: tokens/s, or their share of the run's ceiling [default: auto].",
)
@click.option(
    "--format",
    "form",
    type=click.Choice(baseline_of.FORMS),
    help="text or json; with --baseline also github (a job summary) and junit [default: text].",
)
@click.option("--json", "as_json", is_flag=True, help="The same as --format json.")
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
    wide: bool,
    as_json: bool,
    html: Path | None,
    baseline: str | None,
    form: baseline_of.Form | None,
    **more: Any,
) -> None:
    """Compare runs with BASE: run directories, record.json files, bundles, or names.

    Names are those of `llmb list`: latest~1, or baseline for the latest run with this tag.

    Every ratio is RUN over BASE with the 95 % interval. Different work is refused (exit code 2);
    runs that docs/rules.md keeps apart are shown and marked. A condition is NAME OPERATOR VALUE;
    the value is a number, a number*base, or a name, such as 0.95*base. The worse end of the
    interval decides. Exit code 7 for an unmet condition. With conditions, a single run is allowed;
    with several, the conditions hold for every RUN, not for BASE. Verdicts come from the records:
    `llmb verify` checks a record.

    With --baseline every path is a RUN. NAME is a run, or a branch of the history (branch:NAME, if
    a run has the same name); docs/history.md explains the decision.

    \b
    Examples:
      llmb compare latest~1 latest
      llmb compare old.zip new.zip --require 'tokens_per_second>=0.95*base'
      llmb compare new.zip --require 'verdict==CONSISTENT' --require 'tokens_per_second>=50000'
      llmb compare old.zip new.zip --requirements contract.toml --json
      llmb compare old.zip new.zip newer.zip --html compared.html
      llmb compare --baseline main --fail-on regression --by 3% RUN_DIR --format github
    """
    from llmb.comparison import requirements as conditions
    from llmb.comparison.compare import compare_runs
    from llmb.comparison.data import compare_report
    from llmb.comparison.figures import run_of
    from llmb.records.bundle import read_record
    from llmb.records.canonical import as_json as as_json_data

    if as_json and form not in (None, "json"):
        raise click.UsageError(f"--json and --format {form}: choose one")
    form = "json" if as_json else form or "text"
    if baseline is not None:
        if texts or file is not None or html is not None:
            raise click.UsageError("--baseline goes without --require, --requirements and --html")
        options = baseline_of.BaselineOptions(
            name=baseline,
            history=more["history"],
            last=more["last"],
            by=more["by"],
            chosen=more["measure"],
            fail_on=more["fail_on"],
            form=form,
        )
        baseline_of.compare(paths, options)
        return
    _refuse_without_baseline(form, more["fail_on"])
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
        pages.put_for_user(html, page, say=form != "json")
    if form == "json":
        report = compare_report(names, runs, found, decided)
        click.echo(json.dumps(as_json_data(report), indent=1))
    else:
        _print(names, runs, found, decided, wide=wide)
    _end(names[-len(decided) :], found, decided)


def _refuse_without_baseline(form: str, fail_on: tuple[str, ...]) -> None:
    if form in ("github", "junit"):
        raise click.UsageError(f"--format {form}: only with --baseline NAME")
    if fail_on:
        raise click.UsageError(f"--fail-on {fail_on[0]}: only with --baseline NAME")


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
    names: list[str],
    runs: list[Run],
    found: list[Comparison],
    decided: list[list[Decision]],
    *,
    wide: bool,
) -> None:
    """Print tables for people."""
    from rich.console import Console

    console = Console(highlight=False, width=None if sys.stdout.isatty() else PIPED_WIDTH)
    _head(console, "base" if found else "run", names[0], runs[0])
    if not found:
        _print_decisions(console, decided[0])
    for name, one, decisions in zip(names[1:], found, decided, strict=False):
        console.print()
        _head(console, "run", name, one.other)
        _print_comparison(console, one, wide=wide)
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


def _print_comparison(console: Console, one: Comparison, *, wide: bool) -> None:
    from rich.text import Text

    from llmb.comparison.comparability import Weight

    piped = not sys.stdout.isatty()  # a terminal would cut words at its last column
    styles = {Weight.REFUSED: "red", Weight.NOT_COMPARABLE: "red", Weight.NOTED: "dim"}
    for difference in one.differences:
        line = f"{difference.weight.value}: {printable(str(difference))}"
        console.print(Text(line, style=styles[difference.weight]), soft_wrap=piped)
    if one.refusals:
        return
    print_fitted(_table(one), _LEAST, wide=wide)
    for left in one.left_out:
        line = f"not compared: {left.name} ({left.reason})"
        console.print(Text(printable(line), style="dim"), soft_wrap=piped)
    if one.steps is not None:
        console.print(Text(one.steps.words), soft_wrap=piped)
    for sentence in one.conclusion:
        console.print(Text(sentence, style="bold"), soft_wrap=piped)


def _table(one: Comparison) -> Any:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for title in ("figure", "base", "run", "ratio", "95 % interval", "the run is"):
        table.add_column(
            title,
            justify="left" if title in ("figure", "the run is") else "right",
            overflow="fold",
            no_wrap=title != "figure",
        )
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
