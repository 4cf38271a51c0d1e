"""``llmb demo``: an honest run, a cheat, both verdicts, a verified bundle, and a page."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

import click

from llmb.cli import leaderboard, run
from llmb.cli.pages import write_report
from llmb.cli.text import printable
from llmb.errors import BundleRefusedError, RunFailedError, UsageError

if TYPE_CHECKING:
    from llmb.records.finding import Finding
    from llmb.records.run_record import RunRecord
    from llmb.submission.verify import Verification

#: Both runs, on every machine: about 12 s of one core for each.
_RUN = (
    *("--preset=debug", "--precision=BF16", "--device=cpu"),
    *("--batch-size=1", "--timed-steps=12"),
)
_CHEAT = "cheat"
_PLUGIN, _RUNS, _SUBMISSIONS, _PAGE = "plugin", "runs", "submissions", "leaderboard.html"
#: The first rule to show: the rule about the precision.
_FIRST = "P1"


@dataclass(frozen=True)
class DemoRun:
    """A finished run of the demo."""

    path: Path
    record: RunRecord

    @property
    def broken(self) -> list[Finding]:
        """Findings of the broken blocking rules; the rule about the precision first."""
        from llmb.records.finding import Level, Status

        found = [
            finding
            for finding in self.record.audit.findings
            if finding.level is Level.BLOCK and finding.status is Status.FAIL
        ]
        return sorted(found, key=lambda finding: finding.id != _FIRST)

    def measured(self, rule: str) -> str:
        """Return the value measured for ``rule``. Example: ``forward 6.9 bits``."""
        findings = self.record.audit.findings
        found = next((f.measured for f in findings if f.id == rule and f.measured), None)
        return found or "not measured"


@click.command("demo", short_help="Catch a cheat in a minute: two runs, a bundle, a page.")
@click.option(
    "--output-dir",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("llmb-demo"),
    show_default=True,
    help="Folder for all files of the demo.",
)
@click.option(
    "--open",
    "opens",
    is_flag=True,
    help="Open the cheat's page in a browser at the end.",
)
@click.option("--quiet", "-q", is_flag=True, help="Show no progress of the two runs.")
def command(output_dir: Path, opens: bool, quiet: bool) -> None:
    """Catch a cheat in a minute: two runs, a bundle, a page of each run.

    llmb trains a tiny model twice on the processor: honestly, and with a plugin that rounds the
    weights to FP8 and declares BF16. The audit judges both runs. The honest run becomes a bundle,
    the bundle is verified, and a page of each run shows the rules. Both runs are real, as is the
    plugin: read llmb-demo/plugin. The demo writes nothing outside of --output-dir.

    \b
    Examples:
      llmb demo                       about 40 s on two cores
      llmb demo --open                the same, and the cheat's page in a browser
    """
    from llmb import clock
    from llmb.config import idle_waiting, limit_threads, packages_in

    began_ns = clock.now_ns()
    plugin = _write_plugin(output_dir)
    limit_threads(1)  # the matrices are too small for two threads
    with idle_waiting(), packages_in(plugin):
        click.echo("1/4  an honest run, declared BF16")
        honest = _run(output_dir / _RUNS, ("--plugin=cpu",), quiet)
        click.echo("2/4  the same run by a cheat: weights rounded to FP8, declared BF16")
        cheat = _run(output_dir / _RUNS, (f"--plugin={_CHEAT}",), quiet)
    click.echo("3/4  both verdicts\n")
    _print_verdicts(honest, cheat)
    click.echo("\n4/4  a bundle of each run\n")
    _print_bundles(output_dir, honest, cheat)
    _write_leaderboard(output_dir)
    page = _write_pages(honest, cheat)
    for line in _ending(output_dir, honest, cheat, (clock.now_ns() - began_ns) / 1e9):
        click.echo(line)
    if opens and page is not None:
        click.launch(page.resolve().as_uri())


def _write_plugin(output: Path) -> Path:
    """Write the cheat's package to ``output``, and return the folder for Python's search path.

    Raises:
        UsageError: ``output`` holds other files, or cannot be written.
    """
    folder = output / _PLUGIN
    info = folder / f"llmb_{_CHEAT}-1.0.dist-info"
    sources = {
        folder / f"llmb_{_CHEAT}" / "__init__.py": files("llmb.sdk")
        .joinpath("template/cheat.py.txt")
        .read_text(encoding="utf-8"),
        info / "METADATA": f"Metadata-Version: 2.1\nName: llmb-{_CHEAT}\nVersion: 1.0\n",
        info / "entry_points.txt": f"[llmb]\n{_CHEAT} = llmb_{_CHEAT}\n",
    }
    try:
        if output.is_dir() and any(output.iterdir()) and not info.is_dir():
            raise UsageError(
                f"{str(output)!r} holds other files: name a new folder, such as "
                "--output-dir llmb-demo-2"
            )
        for path, text in sources.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"--output-dir {str(output)!r}: {error.strerror or error}") from None
    return folder.resolve()


def _run(folder: Path, words: Sequence[str], quiet: bool) -> DemoRun:
    """Run as ``llmb run`` does with ``words``, whatever the verdict."""
    from llmb import supervisor
    from llmb.cli.progress import display
    from llmb.wire.forking import fork_server

    context = run.command.make_context("run", [*_RUN, *words])
    request = run.request_of_ranks(context, context.params, 1)
    with fork_server(request.plugin, request.device), display(quiet=quiet) as shown:
        finished = supervisor.run(request, folder, shown)
    return DemoRun(finished.path, finished.record)


def _print_verdicts(honest: DemoRun, cheat: DemoRun) -> None:
    """Print both runs side by side, and the rule that convicts the cheat.

    Raises:
        RunFailedError: the cheat was not convicted.
    """
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from llmb.audit.rules import RULES

    console = Console(highlight=False)
    table = Table(box=None, padding=(0, 4, 0, 0), header_style="bold")
    for title in ("", "honest run", "cheat"):
        table.add_column(title, overflow="fold")
    for name, *cells in _rows(honest, cheat):
        table.add_row(Text(name, "dim"), *(Text(printable(cell)) for cell in cells))
    console.print(table)
    if not cheat.broken:
        verdict = cheat.record.audit.verdict.value
        raise RunFailedError(f"the cheat was not convicted: {verdict}, see llmb audit {cheat.path}")
    first, *others = cheat.broken
    title = next(rule.title for rule in RULES if rule.id == first.id)
    console.print(Text(f"\nrule {first.id}: {title}", "bold"))
    for name, value in (
        ("honest run", honest.measured(first.id)),
        ("cheat", cheat.measured(first.id)),
        ("limit", first.limit or "no difference"),
    ):
        console.print(Text(f"  {name:<12}", "dim").append(value, "not dim"))
    if others:
        names = ", ".join(finding.id for finding in others)
        console.print(Text(f"also broken by the cheat: {names}"))


def _rows(honest: DemoRun, cheat: DemoRun) -> Iterator[tuple[str, str, str]]:
    both = (honest.record, cheat.record)
    figures = {
        "plugin": [record.plugin.name for record in both],
        "declared": [record.precision.declared for record in both],
        "measured": [record.precision.effective or "not observed" for record in both],
        "tokens/s": [f"{record.result.tokens_per_second:,.0f}" for record in both],
        "verdict": [record.audit.verdict.value for record in both],
    }
    for name, (one, other) in figures.items():
        yield name, one, other


def _print_bundles(output: Path, honest: DemoRun, cheat: DemoRun) -> None:
    """Package and verify the honest run, and print the refusal of the cheat's run."""
    from llmb.submission import package
    from llmb.submission.verify import verify

    whose = package.submission_of("demo", "this-machine")
    (bundle,) = package.package([honest.path], whose, output / _SUBMISSIONS, debug=True)
    click.echo(f"packaged  {printable(str(bundle))}")
    click.echo(_verified(verify(bundle)))
    try:
        package.package([cheat.path], whose, output / _SUBMISSIONS, debug=True)
    except BundleRefusedError as error:
        reason = str(error).rpartition("cannot be submitted: ")[2].partition(" (")[0]
        click.echo(f"refused   the cheat's run: {printable(reason)}")


def _verified(found: Verification) -> str:
    failed = [f"{check.name}: {check.message}" for check in found.checks if not check.ok]
    if failed:
        raise BundleRefusedError(f"the demo's bundle is refused: {'; '.join(failed)}")
    return f"verified  {len(found.checks)} checks passed: {printable(found.headline)}"


def _write_leaderboard(output: Path) -> None:
    page = output / _PAGE
    board = leaderboard.ranked((output / _SUBMISSIONS,))
    leaderboard.write(page, leaderboard.text_of(board, "html"))
    click.echo(f"ranking   {printable(str(page))}")


def _write_pages(honest: DemoRun, cheat: DemoRun) -> Path | None:
    """Write ``report.html`` of both runs, and return the path of the cheat's page."""
    found = [write_report(each.path, each.record) for each in (honest, cheat)]
    for name, page in zip(("honest run", "cheat"), found, strict=True):
        if page is not None:
            click.echo(f"page      {printable(str(page))} ({name})")
    return found[1]


def _ending(output: Path, honest: DemoRun, cheat: DemoRun, seconds: float) -> Iterator[str]:
    """Yield the verdicts again, the seconds, and the commands for the same by hand.

    On a terminal of 24 lines the first verdicts are out of sight by then.
    """
    words = " ".join(word.replace("=", " ") for word in _RUN)
    plugin, one, other = (shlex.quote(str(p)) for p in (output / _PLUGIN, honest.path, cheat.path))
    yield ""
    kept, broken = (each.record.audit.verdict.value for each in (honest, cheat))
    yield f"honest run {kept}, cheat {broken} by rule {cheat.broken[0].id}"
    yield f"{seconds:.0f} s; everything is in {output}. The same by hand:"
    yield ""
    yield "  llmb run \\"
    yield f"    {words}"
    yield f"  PYTHONPATH={plugin} llmb run --plugin {_CHEAT} \\"
    yield f"    {words}"
    yield f"  llmb audit {other}"
    yield f"  llmb package-submission {one} \\"
    yield "    --debug --submitter demo --system this-machine"
