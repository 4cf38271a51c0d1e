"""Values for the shell's completion: workloads, recipes, plugins and tags.

Example: ``llmb run --workload gpt2<TAB>``. ``run_name.RunName`` completes names of runs.
docs/usage.md says how to switch completion on.
"""

from __future__ import annotations

from collections.abc import Iterable

import click
from click.shell_completion import CompletionItem


def workloads(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return the named workloads, and files for a definition of the user's own."""
    from llmb.workloads import WORKLOADS

    return _begun(WORKLOADS, incomplete) or [CompletionItem(incomplete, type="file")]


def families(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return the families of models. Example: ``gpt2``."""
    from llmb.families import SHAPES

    return _begun(SHAPES, incomplete)


def recipes(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return the recipes of ``llmb workload recipes``."""
    from llmb.workloads.recipes import RECIPES

    return _begun(RECIPES, incomplete)


def plugins(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return the names of the installed plugins, without importing a plugin."""
    from llmb.plugin import discovery

    return _begun((plugin.name for plugin in discovery.installed()), incomplete)


def tags(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return the tags of the runs here."""
    from llmb.cli.settings import completed_runs_folder
    from llmb.records.run_names import known_tags

    return _begun(known_tags(completed_runs_folder(ctx)), incomplete)


def _begun(names: Iterable[str], incomplete: str) -> list[CompletionItem]:
    return [CompletionItem(name) for name in names if name.startswith(incomplete)]
