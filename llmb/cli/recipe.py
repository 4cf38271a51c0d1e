"""``llmb run --recipe NAME``: a recipe fills in missing options of the command line."""

from __future__ import annotations

from typing import Any

import click
from click.core import ParameterSource

from llmb.cli.settings import strength
from llmb.errors import UsageError


def apply(ctx: click.Context, flags: dict[str, Any]) -> None:
    """Set the options of the recipe in ``flags``, except options given where the recipe was given.

    Example: a recipe of the command line overrides the options of llmb.toml.

    Raises:
        UsageError: the recipe is unknown, or contradicts an option, such as ``--scaling``.
    """
    from llmb.workloads.recipes import recipe_of

    if flags["recipe"] is None:
        return
    recipe = recipe_of(flags["recipe"])
    if flags["scaling"] is not None:
        raise UsageError("--recipe says how many ranks there are: leave --scaling out")
    options = (recipe.debug if flags["preset"] == "debug" else recipe).options
    given = {name for name in flags if strength(ctx, name) >= strength(ctx, "recipe")}
    if "batch_size" in given:
        del options["micro_batch_size"]
    for name, value in options.items():
        if name not in given:
            flags[name] = value
            ctx.set_parameter_source(name, ParameterSource.DEFAULT_MAP)
