"""``llmb package-submission``: turns finished runs into verifiable bundles."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from llmb.cli.run_name import RunName
from llmb.cli.text import printable

if TYPE_CHECKING:
    from llmb.records.submission import Availability


@click.command("package-submission", short_help="Make a submission bundle of finished runs.")
@click.argument("run_dirs", metavar="RUN_DIR...", nargs=-1, required=True, type=RunName())
@click.option("--submitter", metavar="ID", help="Submitter: a-z, 0-9, dashes; a folder.")
@click.option("--system", metavar="ID", help="Tested system: a-z, 0-9, dashes; a folder.")
@click.option("--organisation", metavar="NAME", help="The submitter's name for people to read.")
@click.option("--system-name", metavar="NAME", help="The system's name for people to read.")
@click.option("--contact", metavar="ADDRESS", help="Where questions reach you; becomes public.")
@click.option(
    "--availability",
    type=click.Choice(["available", "preview", "research"]),
    help="Whether the system is sold: now, soon, or not [default: as in earlier bundles].",
)
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
@click.option(
    "--sign",
    "key",
    metavar="KEY",
    type=Path,
    help="Sign with this ssh key: a private key, or the public key of an ssh-agent.",
)
@click.option(
    "--evidence",
    metavar="FOLDER",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder for large evidence, instead of the bundles.",
)
@click.option("--debug", is_flag=True, help="Bundle debug runs, too: verifiable, never ranked.")
@click.option("--json", "as_json", is_flag=True, help="Print the written bundles as JSON.")
def command(
    run_dirs: tuple[Path, ...],
    submitter: str | None,
    system: str | None,
    organisation: str | None,
    system_name: str | None,
    contact: str | None,
    availability: Availability | None,
    output: Path,
    with_zip: bool,
    missing: tuple[str, ...],
    key: Path | None,
    evidence: Path | None,
    debug: bool,
    as_json: bool,
) -> None:
    """Make bundles out of finished runs: run directories, or names, such as latest or a tag.

    Each run is verified first. Debug runs, INVALID runs, unfinished runs and runs whose plugin
    files changed since are refused with the reason; nothing is written then. UNVERIFIED runs are
    packaged and say so. With --sign, RUN_DIR may be a bundle (folder or zip): the
    bundle is verified and gets another signature.

    With --evidence the arrays of evidence of 64 KiB and more go into a folder, each as a file
    named by its digest. Publish the folder, for example on a web server or as assets of
    a release; `llmb verify --evidence PLACE` reads the files.

    \b
    Examples:
      llmb package-submission runs/20261101T* --submitter acme --system box-8x --zip
      llmb package-submission runs/20261101T* --submitter acme --system box-8x \\
        --organisation "Acme, Inc." --contact llm@acme.example --sign ~/.ssh/id_ed25519
      llmb package-submission --sign ~/.ssh/id_ed25519 submissions/acme/box-8x/*/*/
      llmb package-submission runs/20261101T* --submitter acme --system box-8x \\
        --evidence evidence
    """
    from llmb.submission import elsewhere, package

    if _are_bundles(run_dirs, key):
        named = (submitter, system, organisation, system_name, contact, availability)
        if any(named) or missing or with_zip or debug:
            raise click.UsageError("a bundle is there already: it can only be signed")
        assert key is not None
        there = elsewhere.places([str(evidence)] if evidence else [])
        written = package.sign(run_dirs, key, there.take if there else None)
    else:
        for flag, value in (("--submitter", submitter), ("--system", system)):
            if value is None:
                raise click.UsageError(f"Missing option '{flag}'.")
        reasons = _reasons(missing)
        whose = package.submission_of(
            submitter or "", system or "", organisation, system_name, availability, contact
        )
        written = package.package(run_dirs, whose, output, with_zip, reasons, key, evidence, debug)
    if as_json:
        click.echo(json.dumps({"bundles": [str(path) for path in written]}, indent=1))
        return
    for path in written:
        click.echo(printable(str(path)))


def _are_bundles(paths: tuple[Path, ...], key: Path | None) -> bool:
    from llmb.submission import package

    bundles = [path for path in paths if package.is_bundle(path)]
    if bundles and (key is None or len(bundles) < len(paths)):
        name = str(bundles[0])
        raise click.UsageError(f"{name!r} is a bundle: it can be signed (--sign KEY), not packaged")
    return bool(bundles)


def _reasons(missing: tuple[str, ...]) -> dict[str, str]:
    reasons = {}
    for pair in missing:
        name, _, reason = (part.strip() for part in pair.partition("="))
        if not name or not reason:
            raise click.UsageError(f"--missing {pair!r}: write it as PRECISION=REASON")
        reasons[name] = reason
    return reasons
