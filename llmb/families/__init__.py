"""The families of models, such as llama and gpt2. A value per family holds every difference.

A file of this folder with ``FAMILIES`` adds its families, such as ``qwen3.py``; no list names them.
``llmb.reference`` has the models, pinned. ``llmb.submission`` repeats the numbers of each family on
purpose: the check of a bundle is a second, independent path.
"""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules
from typing import Any

from llmb.families.family import TRANSFORM, BlockBytes, Family, Gemm, ProbeParts, Size, Slice
from llmb.reference.shapes import Shape

__all__ = [
    "FAMILIES",
    "SHAPES",
    "TRANSFORM",
    "BlockBytes",
    "Family",
    "Gemm",
    "ProbeParts",
    "Size",
    "Slice",
    "family_of",
]

_FILES = [import_module(f"{__name__}.{found.name}") for found in iter_modules(__path__)]
_EVERY: list[Family[Any]] = [one for file in _FILES for one in getattr(file, "FAMILIES", ())]
#: Every kind of model by its name in records and workload files: its family, and its shape.
FAMILIES: dict[str, Family[Any]] = {name: one for one in _EVERY for name in one.shapes}
SHAPES: dict[str, type[Shape]] = {name: FAMILIES[name].shapes[name] for name in FAMILIES}
_OF_SHAPE = {shape: FAMILIES[name] for name, shape in SHAPES.items()}


def family_of(shape: Shape) -> Family[Any]:
    """Return the family of the model of ``shape``."""
    return _OF_SHAPE[type(shape)]
