"""The families of models: llama, gpt2, bert. One value per family holds every difference.

``llmb.reference`` has the models, pinned. ``llmb.submission`` repeats the numbers of each family on
purpose: the check of a bundle is a second, independent path.
"""

from __future__ import annotations

from typing import Any

from llmb.families.bert import BertFamily
from llmb.families.family import (
    TRANSFORM,
    BlockBytes,
    Family,
    Gemm,
    ProbeParts,
    Size,
    Slice,
)
from llmb.families.gpt2 import Gpt2Family
from llmb.families.llama import LlamaFamily
from llmb.reference.shapes import BertShape, Gpt2Shape, LlamaShape, Shape, UngatedLlamaShape

__all__ = [
    "FAMILIES",
    "TRANSFORM",
    "BlockBytes",
    "Family",
    "Gemm",
    "ProbeParts",
    "Size",
    "Slice",
    "family_of",
]

_LLAMA, _GPT2, _BERT = LlamaFamily(), Gpt2Family(), BertFamily()
_OF_SHAPE: dict[type[Shape], Family[Any]] = {
    LlamaShape: _LLAMA,
    UngatedLlamaShape: _LLAMA,
    Gpt2Shape: _GPT2,
    BertShape: _BERT,
}
#: Every family by its name.
FAMILIES: dict[str, Family[Any]] = {one.name: one for one in (_LLAMA, _GPT2, _BERT)}


def family_of(shape: Shape) -> Family[Any]:
    """Return the family of the model of ``shape``."""
    return _OF_SHAPE[type(shape)]
