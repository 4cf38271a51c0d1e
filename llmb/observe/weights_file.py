"""All weights in one safetensors file, written and read a tensor at a time.

The header holds a digest of every tensor, and the digest of a file is that of its header. So a
reader checks the very bytes that it computes with, when it reads them. A digest of the whole file,
taken in advance, would say nothing of a file that somebody alters afterwards.

The library's own writer holds a second copy of everything in memory.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from llmb.endings import is_out_of_space
from llmb.errors import NotEnoughSpaceError, RunFailedError

_TYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
}
#: Bytes that one thread hashes: a feed-forward matrix of llama-1.4b (41 MB) has five such parts.
_PART = 2**23
_THREADS = 8
_LENGTH_BYTES = 8
_METADATA = "__metadata__"
_NOT_YET = "0" * 64


def write(path: Path, values: Iterable[tuple[str, Tensor]]) -> str:
    """Write ``values`` to ``path`` and return the digest of the file: sha256 of its header.

    ``values`` is gone through twice, for the header and for the bytes.

    Raises:
        RunFailedError: a dtype that weights do not have, or no room on the disk.
    """
    listed = list(values)
    header, offset = dict[str, Any](), 0
    for name, value in listed:
        if value.dtype not in _TYPES:
            raise RunFailedError(f"{name} is stored as {value.dtype}, which llmb cannot audit")
        end = offset + value.numel() * value.element_size()
        form = {"dtype": _TYPES[value.dtype], "shape": list(value.shape)}
        header[name] = {**form, "data_offsets": [offset, end]}
        offset = end
    digests = dict.fromkeys(header, _NOT_YET)
    try:
        with path.open("wb") as file, ThreadPoolExecutor(_THREADS) as pool:
            file.write(_head(header, digests))
            for name, value in listed:
                on_host = value.to("cpu").contiguous()
                digests[name] = _digest(on_host, pool)
                file.write(_bytes_of(on_host))
            head = _head(header, digests)  # as long as the first one
            file.seek(0)
            file.write(head)
    except OSError as error:
        kind = NotEnoughSpaceError if is_out_of_space(error) else RunFailedError
        raise kind(
            f"cannot write {path.name} ({offset / 1e9:.1f} GB) for the audit: {error.strerror}; "
            "make room or choose another --output-dir"
        ) from error
    return _sha256(head).hex()


class WeightsFile:
    """Reads single tensors of a file; leaving the context closes it."""

    def __init__(self, path: Path, sha256: str, *, shared: bool = False) -> None:
        """Open ``path`` once its header is found to be the one that was announced.

        A tensor is checked when it is read for the first time. While a vendor's code runs beside
        the reader (``shared``) it is checked every time.

        Raises:
            RunFailedError: the header is another, or the file cannot be read.
        """
        self._path, self._shared = path, shared
        self._forms = _forms(path, sha256)
        self._digests: dict[str, str] = self._forms.pop(_METADATA)
        self._checked = set[str]()
        self._stack = ExitStack()
        try:
            self._file = self._stack.enter_context(safe_open(str(path), framework="pt"))
        except SafetensorError as error:  # cut short
            raise altered(path) from error
        self._pool = self._stack.enter_context(ThreadPoolExecutor(_THREADS))
        self.names: tuple[str, ...] = tuple(self._forms)

    def __enter__(self) -> WeightsFile:
        """Return the open file."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the file."""
        self._stack.close()

    def read(self, name: str) -> Tensor:
        """Return one tensor, as stored.

        Raises:
            RunFailedError: the file has no such tensor, or other bytes than the worker wrote.
        """
        if name not in self._forms:
            raise RunFailedError(f"the worker has left no value of {name}")
        form = self._forms[name]
        value: Tensor = self._file.get_tensor(name)
        if (_TYPES.get(value.dtype), list(value.shape)) != (form["dtype"], form["shape"]):
            raise altered(self._path)
        if self._shared:
            value = value.clone()  # memory that nobody else has
        if self._shared or name not in self._checked:
            if _digest(value, self._pool) != self._digests[name]:
                raise altered(self._path)
            self._checked.add(name)
        return value


def altered(path: Path) -> RunFailedError:
    """Return the error of a file that is not what the worker announced."""
    return RunFailedError(f"{path.name} is not what the worker wrote: it was altered")


def checked_bytes(path: Path, sha256: str) -> bytes:
    """Return the bytes of a small file, whose digest they are found to have.

    Raises:
        RunFailedError: it cannot be read, or is not what the worker wrote.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise RunFailedError(f"{path.name} cannot be read: {error.strerror}") from error
    if _sha256(data).hex() != sha256:
        raise altered(path)
    return data


def _forms(path: Path, sha256: str) -> dict[str, Any]:
    """Return the header of a file, whose digest is found to be the announced one."""
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


def _head(header: dict[str, Any], digests: dict[str, str]) -> bytes:
    head = json.dumps({_METADATA: digests, **header}).encode()
    head += b" " * (-len(head) % _LENGTH_BYTES)
    return len(head).to_bytes(_LENGTH_BYTES, "little") + head


def _bytes_of(value: Tensor) -> memoryview:
    """Return the memory of a contiguous tensor on the host."""
    view: memoryview = value.view(-1).view(torch.uint8).numpy().data
    return view


def _digest(value: Tensor, pool: ThreadPoolExecutor) -> str:
    """Return the sha256 of the sha256 of every part of a contiguous tensor's bytes."""
    data = _bytes_of(value)
    parts = (data[begin : begin + _PART] for begin in range(0, len(data), _PART))
    return _sha256(b"".join(pool.map(_sha256, parts))).hex()


def _sha256(data: bytes | memoryview) -> bytes:
    return hashlib.sha256(data).digest()
