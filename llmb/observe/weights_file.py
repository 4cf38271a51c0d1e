"""All weights in one safetensors file, written and read a tensor at a time.

The library's own writer holds a second copy of everything in memory.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType

import torch
from safetensors import safe_open
from torch import Tensor

from llmb.errors import RunFailedError

_TYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
}
_CHUNK = 2**24


def write(path: Path, values: Iterable[tuple[str, Tensor]]) -> str:
    """Write ``values`` to ``path`` and return the sha256 of the file.

    ``values`` is gone through twice, for the header and for the bytes.

    Raises:
        RunFailedError: a dtype that weights do not have, or no room on the disk.
    """
    listed = list(values)
    header, offset = {}, 0
    for name, value in listed:
        if value.dtype not in _TYPES:
            raise RunFailedError(f"{name} is stored as {value.dtype}, which llmb cannot audit")
        end = offset + value.numel() * value.element_size()
        form = {"dtype": _TYPES[value.dtype], "shape": list(value.shape)}
        header[name] = {**form, "data_offsets": [offset, end]}
        offset = end
    head = json.dumps(header).encode()
    head += b" " * (-len(head) % 8)
    digest = hashlib.sha256()
    try:
        with path.open("wb") as file:
            for piece in (len(head).to_bytes(8, "little"), head):
                digest.update(piece)
                file.write(piece)
            for _, value in listed:
                data = value.to("cpu").contiguous().flatten().view(torch.uint8).numpy().data
                digest.update(data)
                file.write(data)
    except OSError as error:
        raise RunFailedError(
            f"cannot write {path.name} ({offset / 1e9:.1f} GB) for the audit: {error.strerror}; "
            "make room or choose another --output-dir"
        ) from error
    return digest.hexdigest()


class WeightsFile:
    """Reads single tensors of a file; leaving the context closes it."""

    def __init__(self, path: Path, sha256: str) -> None:
        """Open ``path`` once its bytes have been found to be those announced.

        Raises:
            RunFailedError: they are not, or the file is not there.
        """
        if file_digest(path) != sha256:
            raise RunFailedError(f"{path.name} is not what the worker wrote: it was altered")
        self._stack = ExitStack()
        self._file = self._stack.enter_context(safe_open(str(path), framework="pt"))
        self.names: tuple[str, ...] = tuple(self._file.keys())

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
            RunFailedError: the file has no such tensor.
        """
        if name not in self.names:
            raise RunFailedError(f"the worker has left no value of {name}")
        value: Tensor = self._file.get_tensor(name)
        return value


def file_digest(path: Path) -> str:
    """Return the sha256 of a file.

    Raises:
        RunFailedError: it cannot be read.
    """
    digest = hashlib.sha256()
    try:
        with path.open("rb") as file:
            while chunk := file.read(_CHUNK):
                digest.update(chunk)
    except OSError as error:
        raise RunFailedError(f"{path.name} cannot be read: {error.strerror}") from error
    return digest.hexdigest()
