"""``--evidence``: the place of large evidence outside of bundles, for every reading command."""

from __future__ import annotations

import click

evidence_option = click.option(
    "--evidence",
    metavar="PATH_OR_URL",
    multiple=True,
    help="Place of evidence outside of the bundle: a folder or http(s) address; repeatable.",
)
