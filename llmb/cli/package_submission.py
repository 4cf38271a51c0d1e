"""``llmb package-submission``: finished runs -> bundles that a stranger can verify."""

from __future__ import annotations

import json
from pathlib import Path

import click

from llmb.cli.text import printable


@click.command("package-submission", short_help="Make a submission bundle of finished runs.")
@click.argument("run_dirs", metavar="RUN_DIR...", nargs=-1, required=True, type=Path)
@click.option("--submitter", required=True, help="Who hands in; becomes a folder name.")
@click.option("--system", required=True, help="What it was run on; becomes a folder name.")
@click.option(
    "--output",
    type=Path,
    default=Path("submissions"),
    show_default=True,
    help="Folder of all submissions.",
)
@click.option("--zip", "with_zip", is_flag=True, help="Write <bundle>.zip beside each bundle.")
@click.option(
    "--missing",
    metavar="PRECISION=REASON",
    multiple=True,
    help="Why a precision was not handed in; repeatable.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the written bundles as JSON.")
def command(
    run_dirs: tuple[Path, ...],
    submitter: str,
    system: str,
    output: Path,
    with_zip: bool,
    missing: tuple[str, ...],
    as_json: bool,
) -> None:
    """Make bundles out of finished runs.

    Each run is verified first. Debug runs, INVALID runs, unfinished runs and runs whose plugin
    files changed since are refused with the reason; nothing is written then. UNVERIFIED runs are
    packaged and say so.

    \b
    Example:
      llmb package-submission runs/20261101T* --submitter Acme --system box-8x --zip
    """
    from llmb.submission.package import package

    written = package(run_dirs, submitter, system, output, with_zip, _reasons(missing))
    if as_json:
        click.echo(json.dumps({"bundles": [str(path) for path in written]}, indent=1))
        return
    for path in written:
        click.echo(printable(str(path)))


def _reasons(missing: tuple[str, ...]) -> dict[str, str]:
    reasons = {}
    for pair in missing:
        name, _, reason = (part.strip() for part in pair.partition("="))
        if not name or not reason:
            raise click.UsageError(f"--missing {pair!r}: write it as PRECISION=REASON")
        reasons[name] = reason
    return reasons
