"""Text of strangers, made safe for a terminal or a page: no control codes, no hidden characters."""

from __future__ import annotations


def printable(text: str) -> str:
    """Return ``text`` with every control, bidi or other unprintable character escaped."""
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode("ascii")
        for character in text
    )


def plain_text(text: str) -> str:
    """Return ``text`` of many lines with every unprintable character escaped but tabs.

    Example: a colour's escape byte becomes the four characters ``\\x1b``, an end of line stays.
    """
    lines = text.split("\n")
    return "\n".join("\t".join(map(printable, line.split("\t"))) for line in lines)
