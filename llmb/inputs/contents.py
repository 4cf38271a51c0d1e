"""Finds, checks and digests the data of ``--data``, and gives access to the tokens."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from llmb.config import DataSource
from llmb.errors import UsageError
from llmb.inputs.file_list import looks_like_list, read_list
from llmb.inputs.files import sha256_of, sha256_of_ends, size_of
from llmb.inputs.indexed import open_indexed, with_suffix, without_suffix
from llmb.inputs.text import BYTES, open_tokenizer, read_text
from llmb.records.canonical import canonical_bytes

Kind = Literal["indexed", "file-list", "text"]


@dataclass(frozen=True)
class Part:
    """A contiguous run of tokens; a sequence is drawn from a single part."""

    #: The prefix of the pair of files, or the text.
    path: Path
    #: The share of all sequences drawn from the part, such as 0.25.
    weight: float
    #: The corpus name in a file list; empty without a list.
    corpus: str
    tokens: int
    documents: int
    #: numpy's name of the tokens' dtype, such as "uint16".
    dtype: str
    sha256: str
    #: Returns the tokens ``[tokens]``.
    read: Callable[[], npt.NDArray[Any]]


@dataclass(frozen=True)
class Contents:
    """A source of data, and the parts of the source in order."""

    data: DataSource
    parts: tuple[Part, ...]


def describe(path_text: str, tokenizer: str | None = None) -> DataSource:
    """Return the data source of the ``--data`` argument, checked and digested.

    See ``find_contents``.
    """
    return find_contents(path_text, tokenizer).data


def find_contents(path_text: str, tokenizer: str | None = None) -> Contents:
    """Find, check and digest the data at ``path_text``.

    ``path_text`` is a prefix of indexed files, the .bin or .idx file, a list of prefixes, or a
    text. The kind is found from the files. A file with first line `number word word` is a list.
    "indexed:", "file-list:" or "text:" before the path sets the kind; example:
    ``text:corpus.txt``. ``tokenizer`` ("bytes" or the path of a tokenizer.json) is for text only;
    None means "bytes".

    The digest covers every byte of an .idx, of a text and of a tokenizer, and the weights of a
    list. A .bin may have terabytes: the digest covers the size and the first and last MiB. Paths,
    comments and names of corpora are left out: copied data have the digest of the original.

    Raises:
        UsageError: no file, a damaged file, a file of a wrong kind, or no token.
        UnavailableError: a tokenizer.json is given, and the library `tokenizers` is missing.
    """
    kind, path = _resolved(path_text)
    if kind != "text" and tokenizer is not None:
        raise UsageError(f"--tokenizer {tokenizer}: {str(path)!r} holds tokens already, not text")
    if kind == "text":
        name = BYTES if tokenizer in (None, BYTES) else _absolute(str(tokenizer))
        return _whole(kind, path, name, (_text(path, name),))
    if kind == "indexed":
        return _whole(kind, path, None, (_pair(path),))
    parts = [_pair(e.prefix, e.weight, e.corpus, f"{path}:{e.line}: ") for e in read_list(path)]
    return _whole(kind, path, None, tuple(parts))


def _resolved(text: str) -> tuple[Kind, Path]:
    head, colon, rest = text.partition(":")
    for kind in get_args(Kind):
        if colon and head == kind:
            path = Path(_absolute(rest))
            return kind, without_suffix(path) if kind == "indexed" else path
    path = Path(_absolute(text))
    prefix = without_suffix(path)
    if any(with_suffix(prefix, suffix).is_file() for suffix in (".idx", ".bin")):
        return "indexed", prefix
    if not path.exists():
        raise UsageError(f"neither {str(path)!r} exists, nor {prefix.name}.bin and .idx beside it")
    size_of(path)
    return ("file-list" if looks_like_list(path) else "text"), path


def _absolute(text: str) -> str:
    path = str(Path(text).absolute())
    if not text or not path.isprintable():
        raise UsageError(f"{text!r} is no path that can be written down")
    return path


def _pair(prefix: Path, weight: float = 1.0, corpus: str = "", where: str = "") -> Part:
    """Return a pair of indexed files as a part."""
    try:
        found = open_indexed(prefix)
        index, data = with_suffix(prefix, ".idx"), with_suffix(prefix, ".bin")
        digest = _sha256(
            {"idx": sha256_of(index), "bin": size_of(data), "ends": sha256_of_ends(data)}
        )
    except UsageError as error:
        raise UsageError(f"{where}{error}") from None
    return Part(
        path=prefix,
        weight=weight,
        corpus=corpus,
        tokens=found.tokens,
        documents=found.documents,
        dtype=np.dtype(found.dtype).name,
        sha256=digest,
        read=found.read,
    )


def _text(path: Path, tokenizer: str) -> Part:
    """Return a text as a part; tokens from a tokenizer.json are kept in memory."""
    opened = open_tokenizer(tokenizer)
    own = BYTES if tokenizer == BYTES else sha256_of(Path(tokenizer))
    tokens = read_text(path, opened)
    return Part(
        path=path,
        weight=1.0,
        corpus="",
        tokens=len(tokens),
        documents=1,
        dtype=tokens.dtype.name,
        sha256=_sha256({"text": sha256_of(path), "tokenizer": own}),
        read=partial(_same, tokens),
    )


def _same(tokens: npt.NDArray[Any]) -> npt.NDArray[Any]:
    return tokens


def _whole(kind: Kind, path: Path, tokenizer: str | None, parts: tuple[Part, ...]) -> Contents:
    for part in parts:
        if part.tokens == 0:
            raise UsageError(f"{str(part.path)!r} holds no tokens")
    digest = _sha256({"kind": kind, "parts": [[part.weight, part.sha256] for part in parts]})
    data = DataSource(
        path=str(path),
        kind=kind,
        tokenizer=tokenizer,
        sha256=digest,
        tokens=sum(part.tokens for part in parts),
    )
    return Contents(data, parts)


def _sha256(facts: Mapping[str, Any]) -> str:
    return hashlib.sha256(canonical_bytes(dict(facts))).hexdigest()
