"""The fields of a Hugging Face ``config.json`` that every family has."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, PositiveFloat, PositiveInt

from llmb.reference.shapes import Shape


class HuggingFaceConfig(BaseModel):
    """The sizes in a ``config.json``. Other fields steer training or the library."""

    model_config = ConfigDict(extra="ignore", frozen=True, strict=True)

    #: Field -> the only value with which the reference computes the same function.
    required: ClassVar[Mapping[str, object]] = {}

    vocab_size: PositiveInt
    initializer_range: PositiveFloat = 0.02
    pad_token_id: int | None = None
    quantization_config: Mapping[str, Any] | None = None

    @abstractmethod
    def shape(self, folder: Path) -> Shape:
        """Return the shape of the weights in ``folder``, with the longest possible sequence.

        Raises:
            UsageError: the reference cannot compute this model.
        """

    def notes(self) -> tuple[str, ...]:
        """Return what a user should know about the weights."""
        return ()
