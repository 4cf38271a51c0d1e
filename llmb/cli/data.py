"""``llmb data``: real tokens to train on: made from text, and looked at."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from llmb.cli.text import printable

if TYPE_CHECKING:
    from llmb.inputs.contents import Contents, Part

#: Most printed lines of a list; --json has all lines.
_MOST_PARTS = 20


@click.group("data", short_help="Pack text into training data, and show data.")
def command() -> None:
    """Pack text into training data, and show data.

    Data are Megatron's indexed files (PREFIX.bin and PREFIX.idx), a list of indexed files
    (`weight prefix corpus` lines), or plain text.
    """


@command.command("pack", short_help="Write Megatron's indexed format from text.")
@click.argument("inputs", metavar="INPUT...", nargs=-1, required=True, type=Path)
@click.option(
    "--output", metavar="PREFIX", required=True, type=Path, help="Writes PREFIX.bin and PREFIX.idx."
)
@click.option(
    "--tokenizer",
    metavar="bytes|FILE",
    default="bytes",
    show_default=True,
    help="A token is a byte, or what a tokenizer.json makes of the text.",
)
@click.option(
    "--vocab-size",
    type=int,
    help="Refuse other tokens; from 65500 on they take 4 bytes, not 2 [default: the tokenizer's].",
)
@click.option("--lines", is_flag=True, help="Every line is a document, not every file.")
@click.option("--eos", metavar="ID", type=int, help="Token to append to every document.")
@click.option("--force", is_flag=True, help="Replace existing files.")
@click.option("--json", "as_json", is_flag=True, help="Print the written files as JSON.")
def pack_command(inputs: tuple[Path, ...], as_json: bool, **flags: Any) -> None:
    """Tokenise each INPUT, a UTF-8 text, and write the tokens in order.

    Both files appear at the end, or neither. Documents without text are left out.

    \b
    llmb data pack book.txt --output data/book
    llmb data pack a.txt b.txt --output data/ab --tokenizer tokenizer.json --eos 2
    llmb data pack sentences.txt --lines --output data/sentences
    """
    from llmb.inputs.contents import describe
    from llmb.inputs.pack import Order, pack

    order = Order(inputs=inputs, **flags)
    with _progress(inputs) as progress:
        packed = pack(order, progress)
    data = describe(f"indexed:{packed.prefix}")  # reads the written files back
    facts = {
        "prefix": str(packed.prefix),
        "tokens": packed.tokens,
        "documents": packed.documents,
        "empty_documents": packed.empty,
        "dtype": packed.dtype,
        "vocab_size": packed.vocab_size,
        "sha256": data.sha256,
    }
    if as_json:
        click.echo(json.dumps(facts, indent=1))
        return
    documents = f"{packed.documents:,} document{'s' if packed.documents != 1 else ''}"
    left = f"; {packed.empty:,} without text left out" if packed.empty else ""
    click.echo(
        printable(
            f"wrote {packed.prefix}.bin and .idx: {packed.tokens:,} tokens ({packed.dtype}, "
            f"vocabulary {packed.vocab_size:,}), {documents}{left}"
        )
    )


@command.command("show", short_help="Show tokens, documents and digest of data.")
@click.argument("path")
@click.option(
    "--tokenizer",
    metavar="bytes|FILE",
    help="Of text: a token is a byte [default], or what a tokenizer.json makes of the text.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def show(path: str, tokenizer: str | None, as_json: bool) -> None:
    """Check the data at PATH; show the number of tokens and documents, and the digest.

    PATH is a prefix of indexed files, a list of prefixes, or a text. A word in front names the
    kind: "indexed:", "file-list:" or "text:". Example: text:corpus.txt.

    \b
    llmb data show data/book
    llmb data show dolma.txt --json
    llmb data show text:notes.txt --tokenizer tokenizer.json
    """
    from llmb.inputs.contents import find_contents

    contents = find_contents(path, tokenizer)
    if as_json:
        click.echo(json.dumps(_facts(contents), indent=1))
        return
    facts = _facts(contents)
    parts = facts.pop("parts")
    for key, value in facts.items():
        if value is not None:
            text = f"{value:,}" if isinstance(value, int) else str(value)
            click.echo(f"{key:<10} {printable(text)}")
    if facts["kind"] == "file-list":
        click.echo(f"\n{'weight':>10} {'tokens':>18}  corpus, prefix")
        for part in parts[:_MOST_PARTS]:
            line = f"{part['weight']:>10.6f} {part['tokens']:>18,}  "
            click.echo(line + printable(f"{part['corpus']}, {part['path']}"))
        if len(parts) > _MOST_PARTS:
            click.echo(f"and {len(parts) - _MOST_PARTS:,} more; --json shows all")


def _facts(contents: Contents) -> dict[str, Any]:
    data, parts = contents.data, contents.parts
    return {
        "path": data.path,
        "kind": data.kind,
        "tokenizer": data.tokenizer,
        "tokens": data.tokens,
        "documents": sum(part.documents for part in parts),
        "dtype": ", ".join(sorted({part.dtype for part in parts})),
        "sha256": data.sha256,
        "parts": [_part(part) for part in parts],
    }


def _part(part: Part) -> dict[str, Any]:
    return {
        "path": str(part.path),
        "corpus": part.corpus or None,
        "weight": part.weight,
        "tokens": part.tokens,
        "documents": part.documents,
        "dtype": part.dtype,
        "sha256": part.sha256,
    }


@contextmanager
def _progress(inputs: tuple[Path, ...]) -> Iterator[Callable[[int], None]]:
    """Return a callback that draws a bar over the bytes of ``inputs``, if stderr is a terminal."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    console = Console(stderr=True)
    columns = BarColumn(24), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn()
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as bar:
        total = sum(os.path.getsize(path) for path in inputs if path.is_file())
        task = bar.add_task("", total=total)
        yield lambda done: bar.update(task, completed=done)
