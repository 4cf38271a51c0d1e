"""Every model by its shape: without weights, or with the weights that follow from a seed."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path

import torch
from torch import Tensor, nn

from .shapes import Shape

#: Families with the shape in a file of their own: ``qwen3_shape.py`` is the shape of ``qwen3.py``.
_LATER = sorted(path.stem for path in Path(__file__).parent.glob("*_shape.py"))
#: Every model's module by its name, imported here: before the code of any plugin runs.
_MODULES = {
    name: import_module(f".{name}", __package__)
    for name in ("bert", "gpt2", "llama", *(stem.removesuffix("_shape") for stem in _LATER))
}


def model_of(shape: Shape) -> nn.Module:
    """Return the model of ``shape`` with torch's own initial values, on the default device."""
    module, _, name = shape.model.partition(".")
    model: nn.Module = getattr(_MODULES[module], name)(shape)
    return model


def blocks_of(model: nn.Module, shape: Shape) -> Iterable[nn.Module]:
    """Return the blocks of a model of ``shape``, in order.

    Raises:
        AttributeError: it is another model.
    """
    return model.get_submodule(shape.blocks).children()


def initial_value(name: str, size: torch.Size, seed: int, shape: Shape) -> Tensor:
    """Return parameter ``name`` as it starts: float32 on the CPU, a function of seed and name only.

    Matrices are N(0, initializer_range), norm gains are 1, biases and the padding row of an
    embedding are 0. A stage, a shard or a verifier can make any one parameter without the others.
    """
    if name.endswith("bias"):
        return torch.zeros(size)
    if len(size) == 1:
        return torch.ones(size)
    digest = hashlib.sha256(f"{seed}:{name}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "little"))
    value = torch.empty(size).normal_(0.0, shape.initializer_range, generator=generator)
    padding = getattr(shape, "padding_idx", None)
    if padding is not None and name.endswith("embed_tokens.weight"):
        value[padding] = 0.0
    return value


def build(
    shape: Shape,
    seed: int,
    dtype: torch.dtype,
    device: torch.device | str = "cpu",
    values: Callable[[str, torch.Size], Tensor] | None = None,
) -> nn.Module:
    """Return the model with every parameter made in float32 on the CPU, then cast and moved.

    ``values`` gives other values by name and size than those that follow from the seed, on the CPU
    in any dtype; it is called from several threads. One parameter at a time per thread, so the peak
    above the finished model is a few matrices.
    """
    with torch.device("meta"):
        model = model_of(shape)

    def make(item: tuple[str, nn.Parameter]) -> None:
        name, empty = item
        if values is None:
            value = initial_value(name, empty.shape, seed, shape)
        else:
            value = values(name, empty.shape)
        replace_parameter(model, name, value.to(device=device, dtype=dtype))

    # The largest first, so that none of them is left to one thread at the end.
    parameters = sorted(model.named_parameters(), key=lambda item: -item[1].numel())
    with ThreadPoolExecutor(max_workers=4) as pool:  # normal_ is serial and releases the GIL
        list(pool.map(make, parameters))
    return model


def replace_parameter(model: nn.Module, name: str, value: Tensor) -> None:
    """Make ``value`` the parameter ``name`` of ``model``."""
    owner, _, leaf = name.rpartition(".")
    setattr(model.get_submodule(owner), leaf, nn.Parameter(value))
