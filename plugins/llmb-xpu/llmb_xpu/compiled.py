"""``-O compile``: the modes of torch.compile on an Intel GPU."""

from __future__ import annotations

from torch import nn

from llmb.config import Mode, RunConfig
from llmb.plugin.kit import compiling

from .target import Target

#: ``auto``: blocks on a GPU where triton and a C compiler are found, else none. Not where lengths
#: change from call to call (``--dynamic``, mode generate): each would be compiled anew.
AUTO, NONE, BLOCKS = "auto", "none", "blocks"
CHOICES = (AUTO, NONE, BLOCKS, "default", "max-autotune-no-cudagraphs")


def chosen(config: RunConfig) -> str:
    """Return the mode of ``-O compile`` for ``config``, whose device is settled; never ``auto``.

    ``none`` beside ``--executor inductor`` or ``thunder``: llmb itself compiles the model.
    """
    asked = str(config.plugin_options["compile"])
    if config.executor != "eager":
        return NONE
    if asked != AUTO:
        return asked
    on_gpu = config.device.partition(":")[0] == Target.GPU.value
    static = not config.dynamic and config.mode is not Mode.GENERATE
    return BLOCKS if on_gpu and static and compiling.missing_for_compiling() is None else NONE


def post_process(model: nn.Module, config: RunConfig) -> nn.Module:
    """Return ``model``, compiled in place as ``config`` says; every parameter keeps its name.

    With ``blocks`` each block is compiled separately. Example: the twelve blocks of llama-1.4b
    share one program; embedding, head and loss stay eager.
    """
    mode = chosen(config)
    if mode == BLOCKS:
        for block in _blocks(model):
            compiling.compile_in_place(block, "default")
        return model
    return model if mode == NONE else compiling.compile_in_place(model, mode)


def _blocks(model: nn.Module) -> list[nn.Module]:
    """Return the members of every container whose members are of one class, in order."""
    found: list[nn.Module] = []
    for container in model.modules():
        members = list(container.children())
        if (
            isinstance(container, (nn.ModuleList, nn.ModuleDict))
            and len({*map(type, members)}) == 1
        ):
            found += members
    return found
