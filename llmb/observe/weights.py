"""Digests of every parameter, and the few values that every fence reads back (rules W1, T2)."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor, nn

from llmb.observe.canonical import Canonical
from llmb.observe.host_bytes import host_bytes, sha256_of
from llmb.observe.places import picked
from llmb.parallel.shards import is_elsewhere, local
from llmb.records.evidence import ParameterDigest

_SAMPLES = 16  # elements of each parameter that a fence reads back


def digests(model: nn.Module) -> tuple[ParameterDigest, ...]:
    """Return the digest of every parameter of ``model``, by stored name."""
    return _digests([(name, p.detach(), p.requires_grad) for name, p in model.named_parameters()])


def canonical_digests(canonical: Canonical) -> tuple[ParameterDigest, ...]:
    """Return the digest of every canonical parameter, in any storage."""
    return _digests([(n, canonical.value(n), canonical.requires_grad(n)) for n in canonical.names])


def _digests(named: Sequence[tuple[str, Tensor, bool]]) -> tuple[ParameterDigest, ...]:
    with ThreadPoolExecutor(max_workers=4) as pool:  # hashing releases the GIL
        return tuple(pool.map(_digest, named))


def _digest(named: tuple[str, Tensor, bool]) -> ParameterDigest:
    name, value, requires_grad = named
    return ParameterDigest(
        name=name,
        shape=tuple(value.shape),
        dtype=str(value.dtype).removeprefix("torch."),
        requires_grad=requires_grad,
        sha256=sha256_of(value),
    )


class FenceSamples:
    """The loss and a fixed sample of every parameter, as read back at each fence."""

    __slots__ = ("_losses", "_places", "_values")

    def __init__(self, parameters: Iterable[nn.Parameter], seed: int) -> None:
        """Choose the sampled elements of ``parameters`` by ``seed``."""
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():  # of a sharded parameter, only this rank's shard
            parts = [local(p) for p in parameters if not is_elsewhere(p)]
        self._places = [
            (p, _places(p, torch.randint(p.numel(), (_SAMPLES,), generator=generator)))
            for p in parts
            if p.numel()
        ]
        self._losses: list[Tensor] = []
        self._values: list[Tensor] = []

    def read(self, loss: Tensor) -> tuple[float, str]:
        """Return the loss and the sha256 of the bits of loss and sampled parameters.

        Both values are copied from the device: all work that the values depend on is complete when
        the method returns.
        """
        with torch.no_grad():
            sampled = torch.cat(
                [_read(p, place).float().flatten() for p, place in self._places]
            ).cpu()
        host_loss = loss.float().cpu()
        self._losses.append(host_loss)
        self._values.append(sampled)
        bits = hashlib.sha256(host_bytes(host_loss))
        bits.update(host_bytes(sampled))
        return host_loss.item(), bits.hexdigest()

    def tensors(self) -> dict[str, Tensor]:
        """Return all values read: ``loss`` [fences] and ``parameters`` [fences, samples]."""
        return {"loss": torch.stack(self._losses), "parameters": torch.stack(self._values)}


def _read(parameter: Tensor, place: tuple[Tensor, ...]) -> Tensor:
    return picked(parameter, place) if place else parameter


def _places(parameter: Tensor, flat: Tensor) -> tuple[Tensor, ...]:
    if parameter.dim() == 0:  # for example a scale of a quantised format
        return ()
    # Indices per dimension: a view with any strides is read without a copy.
    return tuple(
        i.contiguous().to(parameter.device) for i in torch.unravel_index(flat, parameter.shape)
    )
