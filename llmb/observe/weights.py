"""Digests of every parameter, and the few values that every fence reads back (rules W1, T2)."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor, nn

from llmb.plugin import ParameterView
from llmb.records.evidence import ParameterDigest

_SAMPLES = 16  # elements of each parameter that a fence reads back


def digests(
    model: nn.Module, views: Mapping[str, ParameterView] | None = None
) -> tuple[ParameterDigest, ...]:
    """Return the digest of every parameter, by canonical name where ``views`` give one."""
    named: list[tuple[str, Tensor, bool]]
    if views is None:
        named = [(name, p.detach(), p.requires_grad) for name, p in model.named_parameters()]
    else:
        named = [
            (name, value, True)
            for name, view in views.items()
            if (value := view.read("value")) is not None
        ]
    with ThreadPoolExecutor(max_workers=4) as pool:  # hashing releases the GIL
        return tuple(pool.map(lambda item: _digest(*item), named))


def _digest(name: str, value: Tensor, requires_grad: bool) -> ParameterDigest:
    data = value.to("cpu").contiguous().flatten().view(torch.uint8).numpy()
    return ParameterDigest(
        name=name,
        shape=tuple(value.shape),
        dtype=str(value.dtype).removeprefix("torch."),
        requires_grad=requires_grad,
        sha256=hashlib.sha256(data.data).hexdigest(),
    )


class FenceSamples:
    """The loss and a fixed sample of every parameter, as read back at each fence."""

    def __init__(self, parameters: Iterable[nn.Parameter], seed: int) -> None:
        """Choose the sampled elements of ``parameters`` by ``seed``."""
        generator = torch.Generator().manual_seed(seed)
        self._places = [
            (p, _places(p, torch.randint(p.numel(), (_SAMPLES,), generator=generator)))
            for p in parameters
            if p.numel()
        ]
        self._losses: list[Tensor] = []
        self._values: list[Tensor] = []

    def read(self, loss: Tensor) -> tuple[float, str]:
        """Return the loss and the sha256 of the bits of loss and sampled parameters.

        Both come from the device, so all work they depend on has been done when this returns.
        """
        with torch.no_grad():
            sampled = torch.cat([p[place].float().flatten() for p, place in self._places]).cpu()
        host_loss = loss.float().cpu()
        self._losses.append(host_loss)
        self._values.append(sampled)
        bits = hashlib.sha256(host_loss.numpy().tobytes() + sampled.numpy().tobytes())
        return host_loss.item(), bits.hexdigest()

    def tensors(self) -> dict[str, Tensor]:
        """Return everything read so far: ``loss`` [fences] and ``parameters`` [fences, samples]."""
        return {"loss": torch.stack(self._losses), "parameters": torch.stack(self._values)}


def _places(parameter: nn.Parameter, flat: Tensor) -> tuple[Tensor, ...]:
    if parameter.dim() == 0:  # a scale of a quantised format
        return ()
    # Indices per dimension, so that a view with any strides is read without a copy.
    return tuple(i.to(parameter.device) for i in torch.unravel_index(flat, parameter.shape))
