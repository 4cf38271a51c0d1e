"""The pages of the documentation as a reader meets them: console blocks, and the shown output."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
#: Figures, digests, times and the rules that a cheat breaks differ from run to run: which steps are
#: looked at is drawn.
_VARIABLE = re.compile(r"\b[A-Z]\d(?:, [A-Z]\d)*\b|\b[0-9a-f]{8,}\b|[\d,.]*\d[\d,.TZ]*")


@dataclass(frozen=True)
class Block:
    """A fenced block: ``console`` has commands, ``text`` has shown output."""

    language: str
    text: str


@dataclass(frozen=True)
class Command:
    """A line of a console block without its comment, and the output that the page shows."""

    line: str
    #: The ``text`` block that follows the last command of a console block.
    shown: str = ""


def blocks(page: Path) -> list[Block]:
    """Return the fenced blocks of ``page`` in order."""
    found = re.findall(r"^```(\w+)\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)
    return [Block(language, text) for language, text in found]


def commands(page: Path) -> Iterator[Command]:
    """Yield the lines of every console block."""
    every = blocks(page)
    for block, after in zip(every, [*every[1:], Block("", "")], strict=True):
        if block.language != "console":
            continue
        lines = [line for line in map(_uncommented, block.text.splitlines()) if line]
        for line in lines:
            last = line == lines[-1] and after.language == "text"
            yield Command(line, after.text if last else "")


def llmb_words(page: Path) -> Iterator[list[str]]:
    """Yield the words of every ``llmb`` command, without ``llmb`` and without assignments."""
    for command in commands(page):
        for part in command.line.split(" && "):
            words = shlex.split(part)
            if "llmb" in words:  # an assignment may stand in front
                yield words[words.index("llmb") + 1 :]


def stable(text: str) -> list[str]:
    """Return the lines of ``text`` with ``#`` for each figure, digest and time."""
    lines = (" ".join(_VARIABLE.sub("#", line).split()) for line in text.splitlines())
    return [line for line in lines if line]


def _uncommented(line: str) -> str:
    return re.sub(r"(^|\s)#.*", "", line).strip()
