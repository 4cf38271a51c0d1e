"""Numbers out of safetensors files without torch: float32 arrays as sequences of floats."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import itemgetter

from safetensors import SafetensorError, deserialize

Array = Sequence[float]
Arrays = Mapping[str, Array]


def read(data: bytes) -> dict[str, Array]:
    """Return every float32 array of a safetensors file, flat, by name; others are left out.

    Raises:
        ValueError: not a safetensors file.
    """
    try:
        found = deserialize(data)  # type: ignore[no-untyped-call]
    except SafetensorError as error:
        raise ValueError(f"not a safetensors file: {error}") from None
    return {
        name: memoryview(bytes(entry["data"])).cast("f")
        for name, entry in sorted(found, key=itemgetter(0))  # the library gives them in any order
        if entry["dtype"] == "F32"
    }
