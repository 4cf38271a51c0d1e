"""What a rank does and holds while it is watched: FLOPs, collectives, and the memory that is alive.

Memory is that of storages, from the operation that makes one until nothing refers to it any more.
What a kernel takes for itself and gives back within one operation is not seen.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from llmb.observe.collectives import Collectives
from llmb.observe.shards import is_elsewhere, local
from llmb.simulation import private

#: What is there from step to step, and gradients: of these it is known what they are for.
WEIGHTS, GRADIENTS, OPTIMIZER = "weights", "gradients", "optimizer"
#: What forward passes leave to backward passes, what is gathered and received, and what is gone
#: sooner.
ACTIVATIONS, COLLECTIVES, TEMPORARIES = "activations", "collectives", "temporaries"
ROLES = (WEIGHTS, GRADIENTS, OPTIMIZER, ACTIVATIONS, COLLECTIVES, TEMPORARIES)

#: Yields tensors, some of which are spread over ranks, with what they are for.
Known = Callable[[], Iterable[tuple[str, Tensor]]]


@dataclass(frozen=True)
class Traffic:
    """Collectives of one kind in one micro-batch, forward and backward, and the step after it."""

    kind: str
    #: Dimension of the mesh (pp, dp_replicate, dp_shard, tp) whose ranks they are between.
    group: str
    calls: int
    #: What this rank puts in.
    bytes: int


@dataclass(frozen=True)
class Found:
    """What was counted since the ledger was started, of bytes the most at a time."""

    flops: int
    collectives: tuple[Traffic, ...]
    #: Bytes alive when most were, by what they are for.
    peak: dict[str, int]
    #: Bytes that forward passes left to backward passes.
    activations: int


@dataclass(slots=True, eq=False)
class _Storage:
    """A storage that is alive."""

    size: int
    storage: weakref.ref[Any]
    role: str = TEMPORARIES


class Ledger(Collectives):  # type: ignore[no-untyped-call]
    """Counts what is done with local tensors, and how much of them is alive, while it is active."""

    def __init__(self, known: Known, groups: Mapping[str, str] | None = None) -> None:
        """Start from zero; ``known`` tells what tensors are for, whenever it is asked.

        ``groups`` are the dimensions of the mesh by torch's names of their ranks.
        """
        super().__init__()
        self._groups = groups or {}
        self._formulas, self._known = private.flop_formulas(), known
        self._pieces: dict[int, _Storage] = {}
        self._backward = False
        self._live = self._most = 0
        self._at_most: list[tuple[_Storage, int]] = []
        self._flops = self._activations = 0

    def restart(self) -> None:
        """Count from zero again; what is alive is."""
        self.calls.clear()
        self.bytes.clear()
        self._flops = self._activations = self._most = 0
        self._at_most = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Count ``func`` where it is called on tensors of this rank alone."""
        if any(issubclass(kind, private.WRAPPERS) for kind in types):
            return NotImplemented  # comes back as what this rank does of it
        device = private.device_asked_for(func, args)  # two of three calls
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
        """Note that ``storage`` has another size: FSDP2 gathers a parameter, or gives it back."""
        piece = self._piece(storage)
        self._look()
        self._live += storage.nbytes() - piece.size
        piece.size, piece.role = storage.nbytes(), COLLECTIVES

    def found(self) -> Found:
        """Return what was counted."""
        self._look()
        self._name()
        peak = dict.fromkeys(ROLES, 0)
        for piece, size in self._at_most:
            peak[piece.role] += size
        return Found(self._flops, tuple(self._traffic()), peak, self._activations)

    def count(self, kind: str, size: int, args: tuple[Any, ...]) -> None:
        """Count a collective, and between which ranks it is."""
        group = self._groups.get(private.group_name(args) or "", "all")
        super().count(f"{kind} {group}", size, args)

    def _traffic(self) -> Iterator[Traffic]:
        for label in sorted(self.calls):
            kind, _, group = label.partition(" ")
            yield Traffic(kind, group, self.calls[label], self.bytes[label])

    def _turn(self) -> None:
        """A backward pass begins: what is alive beside what is known was left to it."""
        self._name()
        for piece in self._pieces.values():
            if piece.role == TEMPORARIES:
                piece.role = ACTIVATIONS
        left = sum(p.size for p in self._pieces.values() if p.role == ACTIVATIONS)
        self._activations = max(self._activations, left)

    def _name(self) -> None:
        """Say of each storage of a known tensor what it is for."""
        with torch.no_grad():
            for role, tensor in self._known():
                self._piece(private.bare(local(tensor)).untyped_storage()).role = role

    def _pieces_of(self, values: Any) -> list[_Storage]:
        tensors = (value for value in tree_leaves(values) if isinstance(value, Tensor))
        return [self._piece(t.untyped_storage()) for t in tensors if not is_elsewhere(t)]

    def _piece(self, storage: torch.UntypedStorage) -> _Storage:
        """Return the piece of ``storage``, which is alive from now on at the latest."""
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
        """Remember what is alive, if never was more. Called before anything is given back."""
        if self._live > self._most:
            self._most = self._live
            self._at_most = [(piece, piece.size) for piece in self._pieces.values()]
