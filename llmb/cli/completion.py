"""Values for the shell's completion: workloads, recipes, plugins, and run directories.

Example: ``llmb run --workload gpt2<TAB>``. docs/usage.md says how to switch completion on.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import click
from click.shell_completion import CompletionItem

_RUNS = "runs"
_RECORD = "record.json"


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


def run_directories(
    ctx: click.Context, param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Return the finished runs below ``runs``, the newest first; without a match, files."""
    found = sorted((path.parent for path in Path(_RUNS).glob(f"*/{_RECORD}")), reverse=True)
    return _begun(map(str, found), incomplete) or [CompletionItem(incomplete, type="file")]


def _begun(names: Iterable[str], incomplete: str) -> list[CompletionItem]:
    return [CompletionItem(name) for name in names if name.startswith(incomplete)]
