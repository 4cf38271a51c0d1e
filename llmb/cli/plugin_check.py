"""``llmb plugin check``: the conformance checks of a plugin, as a readable report."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import TYPE_CHECKING

import click

from llmb.cli import completion
from llmb.errors import ConformanceError

if TYPE_CHECKING:
    from llmb.sdk.report import CheckReport, Outcome

_WORDS = {"pass": "ok", "fail": "FAIL", "skip": "skip"}
_STYLES = {"pass": "green", "fail": "bold red", "skip": "yellow"}


@click.command("check", short_help="Check an installed plugin against the interface.")
@click.argument("name", shell_complete=completion.plugins)
@click.option("--device", help="Any torch device string [default: the plugin's].")
@click.option(
    "-O",
    "--plugin-option",
    "plugin_options",
    multiple=True,
    metavar="KEY=VALUE",
    help="An option of the plugin; repeat for more.",
)
@click.option(
    "--only",
    multiple=True,
    metavar="CHECK",
    help="One check or subject, such as device.energy or device; repeat for more.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
@click.option("--quiet", "-q", is_flag=True, help="Show no progress.")
def command(
    name: str,
    device: str | None,
    plugin_options: tuple[str, ...],
    only: tuple[str, ...],
    as_json: bool,
    quiet: bool,
) -> None:
    """Check an installed plugin: hooks, backend, model, permitted points, and a few tiny runs.

    Takes about a minute. Without the plugin's device, the checks of the device are skipped. Exit
    code 8 for a failed check.

    \b
    llmb plugin check acme
    llmb plugin check acme --device acme:1 -O compile=none
    llmb plugin check acme --only device         while a backend is being written
    llmb plugin check acme --json > acme.json
    """
    from llmb.cli.progress import display
    from llmb.cli.run import options_of
    from llmb.records.canonical import pretty_bytes
    from llmb.sdk.examine import examine

    options = options_of(plugin_options)
    with display(quiet=quiet) as shown:
        report = examine(name, device=device, options=options, only=only, display=shown)
    if as_json:
        click.echo(pretty_bytes(report), nl=False)
    else:
        _print(report)
    if not report.passed:
        failed = [outcome.id for outcome in report.outcomes if outcome.status == "fail"]
        raise ConformanceError(
            f"plugin {name!r} fails {len(failed)} of {len(report.outcomes)} checks: "
            f"{', '.join(failed)}"
        )


def _print(report: CheckReport) -> None:
    from rich.console import Console
    from rich.text import Text

    from llmb.cli.text import printable

    console = Console(highlight=False)
    where = report.device or "no device"
    console.print(
        f"{printable(report.distribution)} {printable(report.version)} on {printable(where)}, "
        f"llmb {report.llmb_version}, torch {report.torch_version or 'not loaded'}",
        soft_wrap=True,
        markup=False,
    )
    # Checks of "permitted" come before those of the device and after: one heading for both.
    by_subject: dict[str, list[Outcome]] = {}
    for outcome in report.outcomes:
        by_subject.setdefault(outcome.id.split(".")[0], []).append(outcome)
    for subject, outcomes in by_subject.items():
        console.print(Text(subject, "bold"))
        for status, title, message in _lines(outcomes):
            line = Text("  ").append(f"{_WORDS[status]:<4}", _STYLES[status]).append(f"  {title}")
            if message:
                line.append(f": {printable(message)}", "dim" if status == "pass" else "")
            console.print(line, soft_wrap=True)
    count = report.count
    console.print(
        f"{count['pass']} passed, {count['fail']} failed, {count['skip']} skipped "
        f"in {report.seconds:.0f} s",
        markup=False,
    )


def _lines(outcomes: Iterable[Outcome]) -> Iterator[tuple[str, str, str]]:
    """Yield status, title and message; adjacent checks with the same reason share a line."""
    for (status, message), group in groupby(outcomes, key=lambda o: (o.status, o.message)):
        titles = [outcome.title for outcome in group]
        if status == "skip" and len(titles) > 1:
            yield status, f"{len(titles)} checks", message
        else:
            yield from ((status, title, message) for title in titles)
