"""Converts a prompt to tokens and tokens to text, with the tokenizer beside the weights."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from llmb.errors import UnavailableError, UsageError


class PromptTokenizer:
    """The ``tokenizer.json`` of a checkpoint, read by the library `tokenizers`."""

    def __init__(self, folder: Path, vocab_size: int) -> None:
        """Load the tokenizer in ``folder`` for a model of ``vocab_size`` tokens.

        Raises:
            UnavailableError: the library is not installed.
            UsageError: the folder has no tokenizer.json, or the library cannot read the file.
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
        except Exception as error:  # the library raises bare exceptions
            raise UsageError(f"{str(path)!r} cannot be read: {error}") from None
        # Truncation and padding in the file are meant for batches, and would change the prompt.
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._vocab_size = vocab_size

    def encode(self, prompt: str) -> list[int]:
        """Return the token ids of ``prompt``, with the tokenizer's special tokens.

        Raises:
            UsageError: no token, or a token outside the model's vocabulary.
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
        """Return the text of ``ids`` without special tokens."""
        text: str = self._tokenizer.decode(list(ids))
        return text
