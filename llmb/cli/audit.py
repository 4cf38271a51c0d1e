"""``llmb audit``: the measurements of a run's audit, rule by rule."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from llmb.cli.evidence import evidence_option
from llmb.cli.run_name import RunName
from llmb.cli.tables import print_fitted, wide_option

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from llmb.audit.rule import Rule
    from llmb.config import Mode
    from llmb.records.finding import Audit, Finding
    from llmb.records.precision_recipe import PrecisionRecipe

#: Width of the table outside of a terminal, in characters.
_PIPED_WIDTH = 80
#: Options for --resume, and options for --only.
_OF_RESUME = ("data", "tokenizer", "weights", "quiet")
_OF_ONLY = ("part", "output", "device", "evidence", *_OF_RESUME)
_STYLES = {"pass": "green", "fail": "bold red", "flag": "yellow", "not_observed": "yellow"}


@click.command("audit", short_help="Show the audit of a run, rule by rule.")
@click.argument("path", metavar="RUN", type=RunName())
@click.option("--rule", "rules", multiple=True, metavar="ID", help="Only this rule; repeatable.")
@click.option(
    "--only", metavar="ID", help="Repeat one judgement of rule E1, E2, P1 or L1 on this machine."
)
@click.option("--resume", is_flag=True, help="Finish the audit of a run that ended early.")
@click.option(
    "--part", metavar="NAME", help="With --only: module or parameter [default: the accused part]."
)
@click.option(
    "--output",
    type=Path,
    metavar="FILE",
    help="With --only: file for the tensors (.safetensors); the figure is written beside.",
)
@click.option("--device", help="With --only: another device than the record's.")
@click.option(
    "--data", metavar="PATH", help="With --only or --resume: the token files of the run, if any."
)
@click.option("--tokenizer", metavar="NAME", help="With --data: the tokenizer.")
@click.option(
    "--weights",
    type=Path,
    metavar="DIR",
    help="With --only or --resume: the checkpoint with the run's first weights.",
)
@evidence_option
@wide_option
@click.option("--json", "as_json", is_flag=True, help="Print the audit as JSON.")
@click.option("--quiet", "-q", is_flag=True, help="With --only or --resume: show no progress.")
def command(
    path: Path, rules: tuple[str, ...], only: str | None, resume: bool, **flags: Any
) -> None:
    """Show the audit of a run: RUN is a run directory, a record.json, a bundle, or a name.

    Prints every rule with the measured value, the value of an honest run, the limit, and the
    observing process; then the measured precision: the format of each matrix product, and the share
    of the FLOPs. Exit code 5 if the verdict is INVALID. `llmb verify` judges a bundle again.

    --only ID repeats one judgement with the plugin installed here: a few steps and one or two
    passes, without a timed window. llmb writes and draws input, output and gradient of the part, of
    an honest run's part and of the reference's. Exit code 5 if the part still breaks the rule. The
    result changes no bundle and no verdict.

    --resume finishes the audit of a run that ended early: llmb makes the honest run and the
    reference run from the stored evidence, draws nothing again, and judges. Rules that need the
    running worker stay "not observed". The run stays a debug run, because the drawn seed and nonce
    were on the disk.

    \b
    Examples:
      llmb audit latest
      llmb audit runs/20261101T120000Z-llama-1.4b-BF16-cpu --rule E2 --rule P1
      llmb audit runs/20261101T120000Z-llama-1.4b-BF16-cpu --only E2 --part layers.3.mlp.up_proj
      llmb audit --resume latest
    """
    from llmb.audit.rules import RULES
    from llmb.cli.show import for_terminal
    from llmb.errors import AuditInvalidError, UsageError
    from llmb.records.bundle import read_record
    from llmb.records.canonical import as_json as to_json
    from llmb.records.finding import Verdict

    as_json = flags["as_json"]
    given = [name for name in _OF_ONLY if flags[name] not in (None, False, ())]
    if only is not None:
        from llmb.cli import audit_only

        if resume:
            raise UsageError("--only, --resume: --only judges one part, --resume a whole run")
        if rules:
            raise UsageError("--rule, --only: --rule shows what was recorded, --only judges again")
        audit_only.repeat(path, only.upper(), flags["part"], flags["output"], flags)
        return
    if resume:
        _resume(path, flags, [name for name in given if name not in _OF_RESUME])
    elif given:
        raise UsageError(f"--{given[0]}: only with --only, such as --only E2")
    known = [rule.id for rule in RULES]
    wanted = [rule.upper() for rule in rules]
    for rule in wanted:
        if rule not in known:
            every = ", ".join(known)
            raise UsageError(f"--rule {rule}: there is no such rule (there are {every})")
    record = read_record(path)
    audit, recipe = record.audit, None if wanted else record.precision_recipe
    if wanted:
        kept = tuple(f for f in audit.findings if f.id in wanted)
        audit = audit.model_copy(update={"findings": kept})
    if as_json:
        shown = to_json(audit)
        if recipe is not None:
            shown["precision_recipe"] = to_json(recipe)
        click.echo(json.dumps(shown, indent=1))
    else:
        asked = [rule for rule in RULES if rule.id in wanted]
        products = None if recipe is None else for_terminal(recipe)
        _show(for_terminal(audit), asked, products, record.config.mode, wide=flags["wide"])
        _say_how_to_repeat(path, audit)
    if audit.verdict is Verdict.INVALID:
        raise AuditInvalidError("the run is INVALID")


def _resume(path: Path, flags: dict[str, Any], odd: Sequence[str]) -> None:
    """Finish the audit of the run at ``path``."""
    from llmb.cli import pages
    from llmb.cli.progress import display
    from llmb.errors import UsageError
    from llmb.records.bundle import read_record
    from llmb.reproduction import resumed_audit
    from llmb.reproduction.request_again import Places, request_of
    from llmb.wire.forking import fork_server

    if odd:
        raise UsageError(f"--{odd[0]}: not with --resume, which finishes the run as it was")
    record = read_record(path)
    resumed_audit.check(path, record)
    places = Places(**{name: flags[name] for name in ("data", "tokenizer", "weights")})
    request = request_of(record, places)
    with fork_server(request.plugin, request.device), display(quiet=flags["quiet"]) as shown:
        resumed_audit.resume(path, record, request, shown)
    pages.write_report(path, read_record(path))


def _show(
    audit: Audit,
    asked: Sequence[Rule],
    recipe: PrecisionRecipe | None,
    mode: Mode,
    *,
    wide: bool,
) -> None:
    from rich.console import Console

    from llmb.audit.holes import HOLES

    console = Console(highlight=False)
    print_fitted(_table(audit), (), wide=wide, piped=_PIPED_WIDTH)
    for rule in asked:
        console.print(f"\n{rule.id} cannot see: {rule.cannot_see}", style="dim", markup=False)
        known = [hole for hole in HOLES if rule.id in hole.rules and hole.mode is mode]
        if known:
            console.print(f"known to pass in mode {mode.value}:", style="dim")
        for hole in known:
            console.print(f"  {hole.told()}", style="dim", markup=False, soft_wrap=True)
    if not asked:
        console.print("\nWhat no audit can see:", style="dim")
        for limit in audit.limits:
            console.print(f"  {limit}", style="dim", markup=False, soft_wrap=True)
    if recipe is not None:
        from llmb.cli.precision_table import print_recipe

        print_recipe(console, recipe)
    _say_verdict(console, audit)


def _table(audit: Audit) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for name in ("rule", "result", "level"):
        table.add_column(name, no_wrap=True)
    table.add_column("finding", overflow="fold")
    for finding in audit.findings:
        status = finding.status.value
        table.add_row(
            finding.id,
            Text(status.replace("_", " "), style=_STYLES.get(status, "dim")),
            finding.level.value,
            Text(finding.message),
        )
        for line in (*_figures(finding), *_causes(finding)):
            table.add_row("", "", "", Text(line, style="dim"))
    return table


def _figures(finding: Finding) -> list[str]:
    """Return measured, honest, limit, and the observing processes, as lines.

    A broken finding without a limit of its own shows the rule's limit.
    """
    limit = f"{finding.limit} ({finding.basis})" if finding.limit else None
    if limit is None and _is_broken(finding) and (rule := _rule(finding.id)) is not None:
        limit = rule.limit
    named = (
        ("measured", finding.measured),
        ("honest", finding.honest),
        ("limit", limit),
    )
    lines = [f"{name}: {value}" for name, value in named if value]
    return [*lines, f"by {finding.observer}"] if finding.observer != "none" else lines


def _causes(finding: Finding) -> list[str]:
    """Return the likely honest causes of a failed or flagged finding, as lines."""
    rule = _rule(finding.id) if _is_broken(finding) else None
    return [f"likely honest cause: {cause}" for cause in rule.causes] if rule else []


def _is_broken(finding: Finding) -> bool:
    from llmb.records.finding import Status

    return finding.status in (Status.FAIL, Status.FLAG)


def _rule(name: str) -> Rule | None:
    from llmb.audit.rules import RULES

    return next((rule for rule in RULES if rule.id == name), None)


def _say_how_to_repeat(path: Path, audit: Audit) -> None:
    """Print the command that repeats the judgement of the first broken rule with parts, if any."""
    from llmb.audit.one_part import PASSES
    from llmb.records.printable import printable

    broken = [f.id for f in audit.findings if f.id in PASSES and _is_broken(f)]
    if broken:
        click.echo(f"to look closer: llmb audit {printable(str(path))} --only {broken[0]}")


def _say_verdict(console: Console, audit: Audit) -> None:
    from rich.text import Text

    style = {"INVALID": "bold red", "CONSISTENT": "bold green"}.get(audit.verdict.value, "bold")
    console.print(Text("\nverdict: ").append(audit.verdict.value, style))
