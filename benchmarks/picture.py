"""Draw the terminal output of a command as an SVG, for README.md.

    python benchmarks/picture.py docs/run.svg llmb show submissions/llmb/SYSTEM/RUN

The command runs for real, with colours and 84 columns; rich exports the picture. Fonts are the
reader's own: the file asks no server for any.
"""

from __future__ import annotations

import io
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

from rich.console import Console
from rich.text import Text

COLUMNS = 84
#: rich's template loads a font from a server.
FONT_FACE = re.compile(r"\s*@font-face \{.*?\}\s*\n", re.DOTALL)
ENVIRONMENT = {"FORCE_COLOR": "1", "COLUMNS": str(COLUMNS), "TERM": "xterm-256color"}


def drawn(title: str, output: str) -> str:
    """Return an SVG of ``output``, text with ANSI colours, in a window with ``title``."""
    console = Console(record=True, width=COLUMNS, file=io.StringIO())
    console.print(Text(f"$ {title}", "bold"), soft_wrap=True)
    console.print(Text.from_ansi(output))
    svg = console.export_svg(title="llmb", unique_id="llmb")
    return FONT_FACE.sub("\n", svg).replace("Fira Code, monospace", "monospace")


def main() -> None:
    target, *command = sys.argv[1:]
    words = [sys.executable, "-m", *command] if command[0] == "llmb" else command
    done = subprocess.run(
        words, env={**os.environ, **ENVIRONMENT}, capture_output=True, text=True, check=True
    )
    output = "\n".join(line.rstrip() for line in done.stdout.splitlines())
    shown = [Path(word).name if len(word) > COLUMNS // 2 else word for word in command]
    Path(target).write_text(drawn(shlex.join(shown), output), encoding="utf-8")


if __name__ == "__main__":
    main()
