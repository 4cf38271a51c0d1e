"""All weights in a single safetensors file, written and read tensor by tensor.

The header holds a digest of every tensor, and the digest of a file is the digest of the header. A
reader therefore checks exactly the bytes used for computing, at the time of reading. A digest of
the full file, taken in advance, would not cover a file altered later.

The writer of the safetensors library is not used: that writer holds a second copy of all weights
in memory.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from llmb.endings import is_out_of_space
from llmb.errors import NotEnoughSpaceError, RunFailedError
from llmb.observe.host_bytes import host_bytes

_TYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
}
#: Bytes hashed per thread: a feed-forward matrix of llama-1.4b (41 MB) has five parts.
_PART = 2**23
_THREADS = 8
_LENGTH_BYTES = 8
_METADATA = "__metadata__"
#: Bytes of a tensor's entry in the header, besides its names: a digest (64), type, shape, offsets.
_ENTRY = 320


def write(
    path: Path,
    values: Iterable[tuple[str, Tensor]],
    *,
    names: Sequence[str] | None = None,
    alone: bool = False,
) -> str:
    """Write ``values`` to ``path`` and return the digest of the file: sha256 of the header.

    ``names``: the names of ``values``, in order. With names one value at a time is in memory, which
    matters where a value is made for the file alone, such as one put together from shards.
    ``alone``: without further threads, for a write between timed steps. Rule N2 counts the CPU time
    of threads that have ended.

    Raises:
        RunFailedError: a dtype that weights do not have, or no room on the disk.
    """
    if names is None:
        values = list(values)
        names = [name for name, _ in values]
    room, offset = _room(names), 0
    header, digests = dict[str, Any](), dict[str, str]()
    try:
        with path.open("wb") as file, ExitStack() as stack:
            pool = None if alone else stack.enter_context(ThreadPoolExecutor(_THREADS))
            file.seek(room)
            for name, value in values:
                if value.dtype not in _TYPES:
                    path.unlink()
                    told = f"{name} is stored as {value.dtype}, which llmb cannot audit"
                    raise RunFailedError(told)
                end = offset + value.numel() * value.element_size()
                form = {"dtype": _TYPES[value.dtype], "shape": list(value.shape)}
                header[name] = {**form, "data_offsets": [offset, end]}
                on_host = value.to("cpu").contiguous()
                digests[name] = _digest(on_host, pool)
                file.write(host_bytes(on_host))
                offset = end
            head = _head(header, digests, room)
            file.seek(0)
            file.write(head)
    except OSError as error:
        kind = NotEnoughSpaceError if is_out_of_space(error) else RunFailedError
        raise kind(
            f"cannot write {path.name} for the audit: {error.strerror} (after {offset / 1e6:.0f} "
            "MB); make room or choose another --output-dir"
        ) from error
    return _sha256(head).hex()


class WeightsFile:
    """Reads single tensors of a file; leaving the context closes the file."""

    def __init__(self, path: Path, sha256: str, *, shared: bool = False) -> None:
        """Open ``path`` if the header has the announced digest ``sha256``.

        A tensor is checked on the first read. While a vendor's code runs beside the reader
        (``shared``), a tensor is checked on every read.

        Raises:
            RunFailedError: the header has another digest, or the file cannot be read.
        """
        self._path, self._shared = path, shared
        self._forms = _forms(path, sha256)
        self._digests: dict[str, str] = self._forms.pop(_METADATA)
        self._checked = set[str]()
        self._stack = ExitStack()
        try:
            self._file = self._stack.enter_context(safe_open(str(path), framework="pt"))
        except SafetensorError as error:  # for example a truncated file
            raise altered(path) from error
        self._pool = self._stack.enter_context(ThreadPoolExecutor(_THREADS))
        self.names: tuple[str, ...] = tuple(self._forms)

    def __enter__(self) -> WeightsFile:
        """Return the open file."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the file."""
        self._stack.close()

    def read(self, name: str) -> Tensor:
        """Return a tensor, in the stored dtype.

        Raises:
            RunFailedError: the file lacks the tensor, or the bytes differ from the worker's.
        """
        if name not in self._forms:
            raise RunFailedError(f"the worker has left no value of {name}")
        form = self._forms[name]
        value: Tensor = self._file.get_tensor(name)
        if (_TYPES.get(value.dtype), list(value.shape)) != (form["dtype"], form["shape"]):
            raise altered(self._path)
        if self._shared:
            value = value.clone()  # private memory: no other process can change the bytes
        if self._shared or name not in self._checked:
            if _digest(value, self._pool) != self._digests[name]:
                raise altered(self._path)
            self._checked.add(name)
        return value


def altered(path: Path) -> RunFailedError:
    """Return the error for a file that differs from the file announced by the worker."""
    return RunFailedError(f"{path.name} is not what the worker wrote: it was altered")


def checked_bytes(path: Path, sha256: str) -> bytes:
    """Return the bytes of a small file with the digest ``sha256``.

    Raises:
        RunFailedError: the file cannot be read, or differs from the file the worker wrote.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise RunFailedError(f"{path.name} cannot be read: {error.strerror}") from error
    if _sha256(data).hex() != sha256:
        raise altered(path)
    return data


def _forms(path: Path, sha256: str) -> dict[str, Any]:
    """Return the header of a file, after checking the header against the digest ``sha256``."""
    try:
        with path.open("rb") as file:
            head = file.read(_LENGTH_BYTES)
            head += file.read(min(int.from_bytes(head, "little"), path.stat().st_size))
    except OSError as error:
        raise RunFailedError(f"{path.name} cannot be read: {error.strerror}") from error
    if _sha256(head).hex() != sha256:
        raise altered(path)
    forms: dict[str, Any] = json.loads(head[_LENGTH_BYTES:])
    return forms


def _room(names: Iterable[str]) -> int:
    """Return the number of bytes kept for the header of tensors called ``names``."""
    room = sum(2 * len(json.dumps(name)) + _ENTRY for name in names) + _ENTRY
    return room + -room % _LENGTH_BYTES


def _head(header: dict[str, Any], digests: dict[str, str], room: int) -> bytes:
    """Return the header with its length in front, filled up with spaces to ``room`` bytes."""
    head = json.dumps({_METADATA: digests, **header}).encode()
    length = room - _LENGTH_BYTES
    assert len(head) <= length, "a tensor has more dimensions, or another name, than is allowed for"
    return length.to_bytes(_LENGTH_BYTES, "little") + head.ljust(length)


def _digest(value: Tensor, pool: ThreadPoolExecutor | None) -> str:
    """Return the sha256 of the sha256 of every part of a contiguous tensor's bytes."""
    data = host_bytes(value)
    parts = (data[begin : begin + _PART] for begin in range(0, len(data), _PART))
    digests = map(_sha256, parts) if pool is None else pool.map(_sha256, parts)
    return _sha256(b"".join(digests)).hex()


def _sha256(data: bytes | memoryview) -> bytes:
    return hashlib.sha256(data).digest()
