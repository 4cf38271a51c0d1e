"""Numbers out of safetensors files without torch: float32 arrays as sequences of floats."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import itemgetter

from safetensors import SafetensorError, deserialize

Array = Sequence[float]
Arrays = Mapping[str, Array]
#: Of one array: a sample of 257 elements of each of 16,000 parameters.
MAX_ELEMENTS = 4 * 2**20


def read(data: bytes) -> dict[str, Array]:
    """Return every float32 array of a safetensors file, flat, by name; others are left out.

    Raises:
        ValueError: not a safetensors file, or an array too long to be a sample.
    """
    try:
        found = deserialize(data)  # type: ignore[no-untyped-call]
    except SafetensorError as error:
        raise ValueError(f"not a safetensors file: {error}") from None
    for name, entry in found:
        if len(entry["data"]) > 4 * MAX_ELEMENTS:
            raise ValueError(f"array {name!r} has more than {MAX_ELEMENTS} numbers")
    return {
        name: memoryview(bytes(entry["data"])).cast("f")
        for name, entry in sorted(found, key=itemgetter(0))  # the library gives them in any order
        if entry["dtype"] == "F32"
    }
