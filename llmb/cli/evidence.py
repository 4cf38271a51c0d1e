"""``--evidence``: where the large evidence of bundles lies, for every command that reads it."""

from __future__ import annotations

import click

evidence_option = click.option(
    "--evidence",
    metavar="PATH_OR_URL",
    multiple=True,
    help="Where evidence lies that is not in the bundle: a folder, or http(s). Repeatable.",
)
