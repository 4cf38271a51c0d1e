"""Native libraries whose sources are not published, as a plugin declares them."""

from __future__ import annotations

from llmb.config import Frozen


class NativeLibrary(Frozen):
    """A library that a plugin loads from outside Python's packages (``/opt/vendor/lib``, say).

    llmb reads its digest and size from the file; what cannot be read off it stands here.
    """

    path: str
    version: str | None = None
    licence: str
    where_to_get: str
