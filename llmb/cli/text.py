"""Text of strangers, made fit for a terminal: nothing in it can move a cursor or hide a word."""

from __future__ import annotations


def printable(text: str) -> str:
    """Return ``text`` with every control, bidi or other unprintable character escaped."""
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode("ascii")
        for character in text
    )
