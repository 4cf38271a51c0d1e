"""``llmb plugin``: what is installed, and what of it works here."""

from __future__ import annotations

import json

import click

from llmb.cli import completion, plugin_check, plugin_new


@click.group("plugin", short_help="List, check and write plugins.")
def command() -> None:
    """List, check and write plugins."""


command.add_command(plugin_new.command)
command.add_command(plugin_check.command)


@command.command("list")
@click.argument("names", nargs=-1, metavar="[NAME]...", shell_complete=completion.plugins)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def list_plugins(names: tuple[str, ...], as_json: bool) -> None:
    """List every installed plugin: ready, without a device, or broken, and what it offers here.

    Each is asked in a process of its own, which imports torch: with NAMEs only those are. A broken
    plugin is listed with the reason and does not make the command fail. LLMB_LOAD_PLUGINS (names or
    distributions, comma-separated; empty for none) restricts which vendors' plugins are looked at.

    \b
    llmb plugin list
    llmb plugin list cuda --json
    LLMB_LOAD_PLUGINS= llmb plugin list
    """
    from llmb.cli.offers import print_offers
    from llmb.config import RunRequest
    from llmb.plugin import discovery
    from llmb.supervision.diagnosis import state_of
    from llmb.supervision.negotiation import survey

    asked = tuple(map(discovery.find, dict.fromkeys(names))) or discovery.installed()
    offers = survey(asked, RunRequest())
    if not as_json:
        print_offers(offers)
        return
    keys = {"option_help"}
    data = [{**o.model_dump(mode="json", exclude=keys), "state": state_of(o)} for o in offers]
    click.echo(json.dumps(data, indent=1))
