"""Text of strangers, made fit for a line of a terminal or a page: nothing in it acts or hides."""

from __future__ import annotations


def printable(text: str) -> str:
    """Return ``text`` with every control, bidi or other unprintable character escaped."""
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode("ascii")
        for character in text
    )
