"""Every model by its shape: without weights, or with the weights that follow from a seed."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor, nn

from .bert import Bert
from .gpt2 import Gpt2
from .llama import Llama
from .shapes import BertShape, Gpt2Shape, LlamaShape, Shape


def model_of(shape: Shape) -> nn.Module:
    """Return the model of ``shape`` with torch's own initial values, on the default device."""
    if isinstance(shape, LlamaShape):
        return Llama(shape)
    if isinstance(shape, Gpt2Shape):
        return Gpt2(shape)
    assert isinstance(shape, BertShape)
    return Bert(shape)


def blocks_of(model: nn.Module, shape: Shape) -> Iterable[nn.Module]:
    """Return the blocks of a model of ``shape``, in order.

    Raises:
        AttributeError: it is another model.
    """
    path = "bert.encoder.layer"
    if isinstance(shape, LlamaShape):
        path = "model.layers"
    elif isinstance(shape, Gpt2Shape):
        path = "transformer.h"
    return model.get_submodule(path).children()


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
    padding = shape.padding_idx if isinstance(shape, LlamaShape) else None
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
