"""Snapshot the kernels behind torch's operators, and find kernels registered since.

``torch.library`` registrations are invisible among the callables: the operator stays the same
object. The dispatcher's own dump names operator, dispatch key and place of registration.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.library import Library

#: ``CPU (inactive): registered at /a/file.cpp:47 :: (Tensor _0) -> Tensor _0 [ boxed ]``
_KERNEL = re.compile(r"(\w+)(?:\[alias\])?(?P<hidden> \(inactive\))?: (?P<text>.*)")
#: Lines of the dump about the operator, not about kernels.
_NO_KERNEL = ("name", "schema", "debug", "alias analysis kind")
_PLACE = re.compile(r"registered at (.+?)(?::\d+)?(?: ::.*| \[.*\])?$")
#: Prefixes of a device's name in further dispatch keys of the device, such as ``AutogradCUDA``.
_PREFIXES = ("", "Autograd", "Autocast", "Sparse", "SparseCsr", "Quantized", "NestedTensor")
#: Backends that belong to torch on every machine.
_EVERYBODYS = ("CPU", "Meta")
_TORCH = Path(torch.__file__).parent
#: Files of torch that register kernels on behalf of other code.
_AGENTS = ("library.py", "_library")
#: An operator without any kernel: the dump shows only the fallbacks of the keys.
_PROBE_SPACE, _PROBE = "llmb_probe", "bare"
#: Name of the fallback of a dispatch key, as written in a declaration.
FALLBACK = "torch.ops._.fallback"


def _device_keys() -> frozenset[str]:
    names = list(torch._C.DispatchKey.__members__)
    kinds = names[names.index("StartOfDenseBackends") + 1 : names.index("EndOfDenseBackends")]
    return frozenset(
        f"{prefix}{kind}" for kind in kinds if kind not in _EVERYBODYS for prefix in _PREFIXES
    )


_DEVICE_KEYS = _device_keys()


@dataclass(frozen=True)
class KernelChange:
    """A kernel that was added, or removed (then ``place`` is None)."""

    #: Python name of the operator, such as ``torch.ops.aten.mm``, ``torch.ops.aten.cat.out``.
    name: str
    dispatch_key: str
    #: Source file of the registration in the dispatcher's dump; None if missing.
    place: str | None
    #: The kernel replaces an earlier kernel.
    replaces: bool

    @property
    def supports_a_device(self) -> bool:
        """Tell whether the kernel is new for a device, as vendors need, and replaces no kernel."""
        return self.place is not None and not self.replaces and self.dispatch_key in _DEVICE_KEYS


class Kernels:
    """A snapshot of every kernel of every operator (a twentieth of a second for 3,600)."""

    def __init__(self) -> None:
        """Take the snapshot."""
        self._library = _bare_operator()
        self._dumps = {
            name: torch._C._dispatch_dump(name) for name in torch._C._dispatch_get_all_op_names()
        }
        self._fallbacks: str = torch._C._dispatch_dump_table(f"{_PROBE_SPACE}::{_PROBE}")

    def __len__(self) -> int:
        return len(self._dumps)

    def changes(self, later: Kernels) -> tuple[KernelChange, ...]:
        """Return the kernels in ``later`` that differ, for operators of this snapshot.

        New operators replace nothing. Registrations by torch's own Python files on first import
        belong to torch.
        """
        found = [
            change
            for name, dump in self._dumps.items()
            if later._dumps.get(name) != dump
            for change in _compare(_python_name(name), dump, later._dumps.get(name, ""))
        ]
        found += _compare(FALLBACK, self._fallbacks, later._fallbacks)
        return tuple(change for change in found if not _is_torchs(change.place))


def _bare_operator() -> Library:
    library = Library(_PROBE_SPACE, "FRAGMENT")  # type: ignore[no-untyped-call]
    if f"{_PROBE_SPACE}::{_PROBE}" not in torch._C._dispatch_get_all_op_names():
        library.define(f"{_PROBE}() -> ()")  # type: ignore[no-untyped-call]
    return library


def _python_name(operator: str) -> str:
    return f"torch.ops.{operator.replace('::', '.')}"


def _compare(name: str, before: str, after: str) -> list[KernelChange]:
    old, new = _kernels(before), _kernels(after)
    return [
        KernelChange(name, key, _place(new[key]) if key in new else None, replaces=key in old)
        for key in sorted({*old, *new})
        if old.get(key) != new.get(key)
    ]


def _kernels(dump: str) -> dict[str, str]:
    """Return dispatch key -> description of the active kernel."""
    found = {}
    for line in dump.splitlines():
        match = _KERNEL.match(line)
        if match and match[1] not in _NO_KERNEL and not match["hidden"]:
            found[match[1]] = match["text"]
    return found


def _place(text: str) -> str | None:
    match = _PLACE.search(text)
    return match[1] if match else None


def _is_torchs(place: str | None) -> bool:
    if place is None:
        return False
    file = Path(place)
    return file.is_relative_to(_TORCH) and file.relative_to(_TORCH).parts[0] not in _AGENTS
