"""``llmb plugin``: what is installed, and what of it works here."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from llmb.wire.messages import Offer


@click.group("plugin", short_help="List the installed plugins.")
def command() -> None:
    """Look at the installed plugins."""


@command.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def list_plugins(as_json: bool) -> None:
    """List every installed plugin, and what it offers here or why it does not.

    \b
    llmb plugin list
    llmb plugin list --json
    """
    from llmb.config import RunRequest
    from llmb.plugin import discovery
    from llmb.supervision.negotiation import survey

    offers = survey(discovery.installed(), RunRequest())
    if as_json:
        keys = {"option_help"}
        click.echo(json.dumps([o.model_dump(mode="json", exclude=keys) for o in offers], indent=1))
        return
    for offer in offers:
        click.echo(f"{offer.plugin:<10} {offer.distribution} {offer.version}  {_state(offer)}")
        for name, text in offer.option_help.items():
            click.echo(f"{'':<10}   -O {name}={offer.options[name]}  {text}")


def _state(offer: Offer) -> str:
    if not offer.available:
        return f"not available: {offer.reason}"
    formats = ", ".join(p.name + ("" if p.native else " (slow)") for p in offer.precisions)
    return f"{len(offer.devices)} x {offer.device}: {formats}"
