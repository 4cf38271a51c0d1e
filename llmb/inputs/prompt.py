"""A prompt as tokens, and tokens as text, by the tokenizer that came with the weights."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from llmb.errors import UnavailableError, UsageError


class PromptTokenizer:
    """The ``tokenizer.json`` of a checkpoint, as the library `tokenizers` reads it."""

    def __init__(self, folder: Path, vocab_size: int) -> None:
        """Load the tokenizer in ``folder`` for a model of ``vocab_size`` tokens.

        Raises:
            UnavailableError: the library is not installed.
            UsageError: there is no tokenizer, or none that the library reads.
        """
        try:
            library = import_module("tokenizers")
        except ImportError:
            raise UnavailableError(
                "--prompt needs the library `tokenizers`: pip install 'llmb[data]'"
            ) from None
        path = folder / "tokenizer.json"
        if not path.is_file():
            raise UsageError(
                f"--prompt needs a tokenizer.json beside the weights, and {str(folder)!r} has none"
            )
        try:
            self._tokenizer: Any = library.Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises no class of its own
            raise UsageError(f"{str(path)!r} cannot be read: {error}") from None
        # A batch the tokenizer was trained with says nothing about one prompt.
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._vocab_size = vocab_size

    def encode(self, prompt: str) -> list[int]:
        """Return the ids of ``prompt``, with what the tokenizer puts around every text.

        Raises:
            UsageError: no token, or one that the model has not.
        """
        ids: list[int] = self._tokenizer.encode(prompt).ids
        if not ids:
            raise UsageError(f"--prompt {prompt!r} has no tokens: give some text")
        if max(ids) >= self._vocab_size:
            raise UsageError(
                f"--prompt {prompt!r} has token {max(ids)}, and the model knows only "
                f"{self._vocab_size}: the tokenizer is of another model"
            )
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ``ids``; tokens that stand for no text are left out."""
        text: str = self._tokenizer.decode(list(ids))
        return text
