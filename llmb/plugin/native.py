"""Native libraries without published sources, as a plugin declares them."""

from __future__ import annotations

from llmb.config import Frozen


class NativeLibrary(Frozen):
    """A library that a plugin loads from outside Python's packages, such as ``/opt/vendor/lib``.

    llmb reads digest and size from the file; the fields below hold facts the file does not show.
    """

    path: str
    version: str | None = None
    licence: str
    where_to_get: str
