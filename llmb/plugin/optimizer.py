"""The optimizer of a run, with the kernel that a plugin chooses."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from torch.nn import Parameter
from torch.optim import Optimizer

from llmb.config import RunConfig, is_cpu
from llmb.plugin.faults import PluginFaultError
from llmb.reference.optimizer import build_optimizer

if TYPE_CHECKING:
    from llmb.plugin.manager import Plugin
    from llmb.reference.recipe import Optimizer as Constants


def optimizer_of(
    parameters: Iterable[Parameter], constants: Constants, plugin: Plugin, config: RunConfig
) -> Optimizer:
    """Return the optimizer over ``parameters``, with the options of ``llmb_optimizer_options``.

    Raises:
        PluginFaultError: torch has no such kernel for the device.
    """
    chosen = plugin.optimizer_options(config)
    named = f"plugin {plugin.name!r}: llmb_optimizer_options"
    if chosen.get("capturable") and is_cpu(config.device):
        raise PluginFaultError(
            f"{named} returned capturable, which torch does not have on a processor: leave "
            "capturable out where the device is the processor"
        )
    try:
        return build_optimizer(parameters, constants, **chosen)
    except RuntimeError as error:
        raise PluginFaultError(f"{named} returned {chosen}, and torch refuses: {error}") from error
