"""Count the FLOPs, the collectives and the live memory of one rank.

Memory is counted per storage, from allocation until the last reference is gone. Temporary
workspace within one operation is not counted.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from llmb.observe.collectives import Collectives
from llmb.parallel.shards import is_elsewhere, local
from llmb.simulation import private

#: Roles of known tensors: parameters and optimizer states live from step to step, gradients less.
WEIGHTS, GRADIENTS, OPTIMIZER = "weights", "gradients", "optimizer"
#: Roles of all remaining storages. Activations are kept for the backward pass, collectives are
#: arguments of a collective or gathered parameters, and temporaries are freed earlier.
ACTIVATIONS, COLLECTIVES, TEMPORARIES = "activations", "collectives", "temporaries"
ROLES = (WEIGHTS, GRADIENTS, OPTIMIZER, ACTIVATIONS, COLLECTIVES, TEMPORARIES)

#: Yields (role, tensor) pairs; a tensor may be sharded. Example: ``("weights", parameter)``.
Known = Callable[[], Iterable[tuple[str, Tensor]]]


@dataclass(frozen=True)
class Traffic:
    """Collectives of one kind in one micro-batch (forward, backward) and one optimizer step."""

    #: Example: ``all_gather``.
    kind: str
    #: Mesh dimension of the process group: pp, dp_replicate, dp_shard or tp.
    group: str
    calls: int
    #: Bytes of the rank's input tensors.
    bytes: int


@dataclass(frozen=True)
class Found:
    """The counts since the start of the ledger; memory as the peak."""

    flops: int
    collectives: tuple[Traffic, ...]
    #: Live bytes at the peak, by role. Example: ``{"weights": 2e9, "activations": 5e9}``.
    peak: dict[str, int]
    #: Largest number of bytes that forward passes kept for backward passes.
    activations: int


@dataclass(slots=True, eq=False)
class _Storage:
    """A live storage."""

    size: int
    storage: weakref.ref[Any]
    role: str = TEMPORARIES


class Ledger(Collectives):  # type: ignore[no-untyped-call]
    """Counts operations on local tensors, and live bytes, while the mode is active."""

    def __init__(self, known: Known, groups: Mapping[str, str] | None = None) -> None:
        """Start from zero; ``known`` yields the role of each known tensor at every call.

        ``groups``: torch's name of a process group -> mesh dimension. Example: ``{"7": "tp"}``.
        """
        super().__init__()
        self._groups = groups or {}
        self._formulas, self._known = private.flop_formulas(), known
        self._pieces: dict[int, _Storage] = {}
        self._backward = False
        self._live = self._most = 0
        self._at_most: list[tuple[_Storage, int]] = []
        self._flops = self._activations = 0
        self._paused = False

    @contextmanager
    def pause(self) -> Iterator[None]:
        """Count nothing in a context: operations that a run makes on tensors without memory."""
        before, self._paused = self._paused, True
        try:
            yield
        finally:
            self._paused = before

    def restart(self) -> None:
        """Reset all counts; live storages stay registered."""
        self.calls.clear()
        self.bytes.clear()
        self._flops = self._activations = self._most = 0
        self._at_most = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Count ``func`` if all argument tensors are plain local tensors."""
        if any(issubclass(kind, private.WRAPPERS) for kind in types):
            return NotImplemented  # the wrapper calls again with local tensors
        if self._paused:
            return func(*args, **(kwargs or {}))
        device = private.device_asked_for(func, args)  # two of three calls end here
        if device is not None:
            return device
        backward = private.goes_backward()
        if backward and not self._backward:
            self._turn()
        self._backward = backward
        found = super().__torch_dispatch__(func, types, args, kwargs)
        formula = self._formulas.get(getattr(func, "_overloadpacket", None))
        if formula is not None:
            self._flops += formula(*args, **(kwargs or {}), out_val=found)
        self._pieces_of(found)
        if func.namespace == "c10d" and "send" not in func._schema.name:
            for piece in self._pieces_of(args):
                piece.role = COLLECTIVES
        return found

    def resized(self, storage: torch.UntypedStorage) -> None:
        """Note the new size of ``storage``: FSDP2 gathers a parameter, or frees the copy."""
        piece = self._piece(storage)
        self._look()
        self._live += storage.nbytes() - piece.size
        piece.size, piece.role = storage.nbytes(), COLLECTIVES

    def found(self) -> Found:
        """Return the counts so far."""
        self._look()
        self._name()
        peak = dict.fromkeys(ROLES, 0)
        for piece, size in self._at_most:
            peak[piece.role] += size
        return Found(self._flops, tuple(self._traffic()), peak, self._activations)

    def count(self, kind: str, size: int, args: tuple[Any, ...]) -> None:
        """Count a collective under its kind and mesh dimension. Example: ``all_gather tp``."""
        group = self._groups.get(private.group_name(args) or "", "all")
        super().count(f"{kind} {group}", size, args)

    def _traffic(self) -> Iterator[Traffic]:
        for label in sorted(self.calls):
            kind, _, group = label.partition(" ")
            yield Traffic(kind, group, self.calls[label], self.bytes[label])

    def _turn(self) -> None:
        """Relabel live temporaries as activations, at the beginning of a backward pass."""
        self._name()
        for piece in self._pieces.values():
            if piece.role == TEMPORARIES:
                piece.role = ACTIVATIONS
        left = sum(p.size for p in self._pieces.values() if p.role == ACTIVATIONS)
        self._activations = max(self._activations, left)

    def _name(self) -> None:
        """Set the role of each known tensor's storage."""
        with torch.no_grad():
            for role, tensor in self._known():
                self._piece(private.bare(local(tensor)).untyped_storage()).role = role

    def _pieces_of(self, values: Any) -> list[_Storage]:
        tensors = (value for value in tree_leaves(values) if isinstance(value, Tensor))
        return [self._piece(t.untyped_storage()) for t in tensors if not is_elsewhere(t)]

    def _piece(self, storage: torch.UntypedStorage) -> _Storage:
        """Return the entry of ``storage``; register a new storage as live."""
        key = storage._cdata
        piece = self._pieces.get(key)
        if piece is None:

            def gone(_: object) -> None:
                self._look()
                self._live -= self._pieces.pop(key).size

            piece = _Storage(storage.nbytes(), weakref.ref(storage, gone))
            self._pieces[key] = piece
            self._live += piece.size
        return piece

    def _look(self) -> None:
        """Record the live storages at a new peak. Call before any memory is freed."""
        if self._live > self._most:
            self._most = self._live
            self._at_most = [(piece, piece.size) for piece in self._pieces.values()]
