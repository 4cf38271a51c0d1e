"""Text of strangers, made safe for a terminal or a page: no control codes, no hidden characters.

Long lists are cut, too.
"""

from __future__ import annotations

from collections.abc import Iterable


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


def few(texts: Iterable[str], most: int, between: str = ", ") -> str:
    """Return the first ``most`` of ``texts``, and how many follow. Example: ``a, b and 3 more``."""
    every = list(texts)
    more = f" and {len(every) - most} more" if len(every) > most else ""
    return between.join(every[:most]) + more
