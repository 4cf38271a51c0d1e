"""``llmb plugin``: the installed plugins, and the state of each plugin here."""

from __future__ import annotations

import json

import click

from llmb.cli import completion, plugin_check, plugin_new
from llmb.cli.tables import wide_option


@click.group("plugin", short_help="List, check and write plugins.")
def command() -> None:
    """List, check and write plugins."""


command.add_command(plugin_new.command)
command.add_command(plugin_check.command)


@command.command("list")
@click.argument("names", nargs=-1, metavar="[NAME]...", shell_complete=completion.plugins)
@wide_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def list_plugins(names: tuple[str, ...], wide: bool, as_json: bool) -> None:
    """List installed plugins: ready, without a device, or broken; with devices and formats.

    Each plugin runs in a process with torch; NAMEs restrict the processes. A broken plugin is
    listed with the reason, and the exit code stays 0. LLMB_LOAD_PLUGINS restricts the vendors'
    plugins: names or distributions with commas, such as fast,acme; empty for none.

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
        print_offers(offers, wide=wide)
        return
    keys = {"option_help"}
    data = [{**o.model_dump(mode="json", exclude=keys), "state": state_of(o)} for o in offers]
    click.echo(json.dumps(data, indent=1))
