"""``llmb plugin new``: writes the first version of a vendor's package."""

from __future__ import annotations

from pathlib import Path
from shlex import quote

import click


@click.command("new", short_help="Write the package of a new plugin.")
@click.argument("name")
@click.option(
    "--directory",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder of the package [default: ./llmb-NAME].",
)
def command(name: str, directory: Path | None) -> None:
    """Write the package of a new plugin: hooks explained, tests, README, workflow.

    The package installs, runs and passes the included tests. NAME is the value of --plugin.

    \b
    llmb plugin new acme
    llmb plugin new acme --directory ~/src/llmb-acme
    """
    from llmb.sdk import scaffold

    package = scaffold.Package(name)
    folder = directory or Path(package.distribution)
    written = scaffold.write(package, folder)
    click.echo(f"wrote {folder}: {len(written)} files")
    for path in written:
        click.echo(f"  {path}")
    click.echo(
        "\nNext:\n"
        f"  pip install -e {quote(f'{folder}[dev]')}\n"
        f"  llmb run --plugin {name} --preset debug\n"
        f"  pytest {quote(str(folder))}\n"
        f"The same checks without pytest: llmb plugin check {name}"
    )
