"""Indexed files byte by byte, with struct alone, and a tokenizer made by the real library."""

from __future__ import annotations

import struct
from pathlib import Path

#: Letter of struct -> code of the dtype in the format.
CODES = {"B": 1, "b": 2, "h": 3, "i": 4, "q": 5, "H": 8}


def index_bytes(
    sizes: list[int],
    marks: list[int],
    *,
    code: int = 8,
    itemsize: int = 2,
    magic: bytes = b"MMIDIDX\x00\x00",
    version: int = 1,
    offsets: list[int] | None = None,
) -> bytes:
    """Return an .idx, every field of it."""
    if offsets is None:
        offsets = [sum(sizes[:i]) * itemsize for i in range(len(sizes))]
    parts = [
        magic,
        struct.pack("<Q", version),
        struct.pack("<B", code),
        struct.pack("<Q", len(sizes)),
        struct.pack("<Q", len(marks)),
        struct.pack(f"<{len(sizes)}i", *sizes),
        struct.pack(f"<{len(sizes)}q", *offsets),
        struct.pack(f"<{len(marks)}q", *marks),
    ]
    return b"".join(parts)


def write_pair(prefix: Path, documents: list[list[int]], letter: str = "H") -> Path:
    """Write ``documents`` of one sequence each and return ``prefix``."""
    flat = [token for document in documents for token in document]
    index = index_bytes(
        [len(document) for document in documents],
        list(range(len(documents) + 1)),
        code=CODES[letter],
        itemsize=struct.calcsize(f"<{letter}"),
    )
    prefix.parent.mkdir(parents=True, exist_ok=True)
    Path(f"{prefix}.bin").write_bytes(struct.pack(f"<{len(flat)}{letter}", *flat))
    Path(f"{prefix}.idx").write_bytes(index)
    return prefix


def write_tokenizer(path: Path, words: list[str], **settings: bool) -> Path:
    """Write a tokenizer.json that gives each of ``words`` its place, unknown ones 0.

    With ``hurdles`` the file asks for what tokens of a training text must not have: a length to
    cut to, padding, and a special token before every text.
    """
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    vocabulary = {word: number for number, word in enumerate(["[UNK]", *words])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    if settings.get("hurdles"):
        tokenizer.enable_truncation(2)
        tokenizer.enable_padding(length=5)
        tokenizer.post_processor = processors.TemplateProcessing(
            single="[UNK] $A", special_tokens=[("[UNK]", 0)]
        )
    tokenizer.save(str(path))
    return path
