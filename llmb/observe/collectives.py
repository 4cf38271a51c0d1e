"""Count the collectives of a rank in a step, and the bytes, by kind such as ``all_gather``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

#: torch's namespaces: functional collectives (DTensor), and process groups (DDP, FSDP).
_SPACES = ("_c10d_functional", "_c10d_functional_autograd", "c10d_functional", "c10d")
_KINDS = (
    ("reduce_scatter", "reduce_scatter"),
    ("allgather", "all_gather"),
    ("all_gather", "all_gather"),
    ("allreduce", "all_reduce"),
    ("all_reduce", "all_reduce"),
    ("alltoall", "all_to_all"),
    ("all_to_all", "all_to_all"),
    ("broadcast", "broadcast"),
    ("send", "send"),
    ("recv", "receive"),
    ("reduce", "reduce"),
)


class Collectives(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts this rank's collectives while active, and the input bytes of each kind."""

    def __init__(self) -> None:
        """Start from zero."""
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: Counter[str] = Counter()
        self.bytes: Counter[str] = Counter()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Count ``func`` if ``func`` is a collective, and call ``func``."""
        if any(hasattr(kind, "device_mesh") for kind in types):
            return NotImplemented  # DTensor splits ``func`` into local operators and collectives
        if func.namespace in _SPACES:
            name = func._schema.name.partition("::")[2]
            kind = next((kind for part, kind in _KINDS if part in name), None)
            if kind is not None:
                self.count(kind, sum(t.nbytes for t in _given(kind, args)), args)
        return func(*args, **(kwargs or {}))

    def count(self, kind: str, size: int, args: tuple[Any, ...]) -> None:
        """Count a collective with an input of ``size`` bytes."""
        self.calls[kind] += 1
        self.bytes[kind] += size


def _given(kind: str, args: tuple[Any, ...]) -> Iterable[Tensor]:
    """Return a rank's input tensors: process group operators list the result before the input."""
    tensors = [list(_tensors(value)) for value in args]
    first = [found for found in tensors if found]
    if not first:
        return ()
    takes_result = kind in ("all_gather", "reduce_scatter") and len(first) > 1
    return first[1] if takes_result else first[0]


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from _tensors(each)
