"""Workloads: named models with fixed shapes, and the FLOPs and memory of a token.

Example: ``llama-1.4b``, or a user's own file NAME.json with ``family`` and sizes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from llmb.config import Definition, Mode, RunConfig, RunRequest, ShapeName
from llmb.errors import UsageError, did_you_mean
from llmb.families import SHAPES, family_of
from llmb.reference.shapes import Shape
from llmb.workloads import definition as definition_file
from llmb.workloads.definition import NAME, SIZES, Fault
from llmb.workloads.table import LADDER, WORKLOADS
from llmb.workloads.workload import Workload

__all__ = [
    "LADDER",
    "WORKLOADS",
    "Workload",
    "define",
    "faults",
    "find",
    "mode_of",
    "of",
    "why_no_name",
]

#: Of two tokens one has a loss, and the attention of this token sees nothing else: the gradients of
#: queries and keys are zero.
_LEAST_LENGTH = 3
#: Changes that make a size fit the others, one after the other: size -> the size in its place.
_MENDED: dict[str, Callable[[Any], int]] = {
    "hidden_size": lambda shape: 128 * shape.num_attention_heads,
    "num_key_value_heads": lambda shape: shape.num_attention_heads,
    "sequence_length": lambda shape: getattr(shape, "max_position_embeddings", _LEAST_LENGTH),
    "padding_idx": lambda shape: 0,
}


def of(run: RunRequest | RunConfig) -> Workload:
    """Return the workload of ``run``, with the run's changes to the shape.

    Raises:
        UsageError: unknown name, or a shape without a valid model.
    """
    return find(run.workload, run.shape_overrides, run.definition)


def find(
    name: str, overrides: Mapping[ShapeName, int], definition: Definition | None = None
) -> Workload:
    """Return workload ``name`` with ``overrides`` applied to its shape.

    ``definition`` has the family and sizes of a user's own workload; None for llmb's workloads.

    Raises:
        UsageError: unknown name, or a shape without a valid model. Example: a hidden size of 100
            with 3 attention heads.
    """
    if definition is not None:
        base = define(name, definition)
    elif name in WORKLOADS:
        base = WORKLOADS[name]
    else:
        near = did_you_mean(name, WORKLOADS) or f": choose one of {', '.join(WORKLOADS)}"
        raise UsageError(
            f"unknown workload {name!r}{near}; llmb workload list shows all, and a file NAME.json "
            "has sizes of your own"
        )
    shape = _override(base.shape, overrides)
    _check(shape)
    return replace(base, shape=shape)


def mode_of(workload: Workload, asked: Mode | None) -> Mode:
    """Return the mode of a run of ``workload``: ``asked``, or the workload's first mode.

    Raises:
        UsageError: the workload lacks the mode ``asked``.
    """
    if asked is None:
        return workload.modes[0]
    if asked not in workload.modes:
        modes = ", ".join(one.value for one in workload.modes)
        raise UsageError(
            f"workload {workload.name!r} has no mode {asked.value} (it has {modes}): choose one of "
            "those, or another workload (llmb workload list)"
        )
    return asked


def define(name: str, definition: Definition) -> Workload:
    """Return a user's own workload: a family, and any sizes different from the family's defaults.

    Raises:
        UsageError: the name is taken or invalid, the family is unknown, or a size is unknown or
            below 1.
    """
    wrong = why_no_name(name)
    if wrong:
        raise UsageError(wrong)
    for fault in definition_file.faults(definition):
        raise UsageError(f"workload {name!r}: {fault.text}")
    shape = _shape(definition)
    return Workload(name, shape, None, modes=family_of(shape).modes)


def why_no_name(name: str) -> str:
    """Return why a user's own workload cannot have ``name``; nothing if it can."""
    if name in WORKLOADS:
        return f"workload {name!r} is one of llmb's own: choose another name"
    if not re.fullmatch(NAME, name, re.ASCII):
        return f"workload {name!r}: a name may hold letters, digits and . _ - only"
    return ""


def faults(definition: Definition) -> list[Fault]:
    """Return every fault of a user's own workload: of each key, else of sizes that do not fit."""
    found = definition_file.faults(definition)
    if found:
        return found
    shape = _shape(definition)
    return [_named(text, definition) for text in _misfits(shape)]


def _shape(definition: Definition) -> Shape:
    kind = SHAPES[str(definition["family"])]
    sizes: dict[str, Any] = {key: size for key, size in definition.items() if key in SIZES}
    return kind(**sizes)


def _named(text: str, definition: Definition) -> Fault:
    """Return a fault in the words of a file: ``hidden_size`` instead of ``--hidden-size``."""
    told = re.sub(r"--([a-z-]+)", lambda found: found[1].replace("-", "_"), text)
    keys = [key for key in re.findall(r"\w+", told) if key in definition]
    return Fault(keys[-1] if keys else "family", told)


def _misfits(shape: Shape) -> Iterator[str]:
    """Yield every reason why no model has these sizes: mend the first, and look for the next."""
    said = _why_not(shape)
    while said:
        yield said
        mended = (
            type(shape)(**{**vars(shape), size: value(shape)})
            for size, value in _MENDED.items()
            if hasattr(shape, size)
        )
        better = ((other, _why_not(other)) for other in mended)
        shape, said = next((found for found in better if found[1] != said), (shape, ""))


def _why_not(shape: Shape) -> str:
    """Return the first reason why no model has these sizes; nothing if a model has."""
    try:
        _check(shape)
    except UsageError as error:
        return str(error)
    return ""


def _override(shape: Shape, overrides: Mapping[ShapeName, int]) -> Shape:
    before = shape
    for field, value in overrides.items():
        if value < 1:
            raise UsageError(f"--{field.replace('_', '-')} is {value}: it must be at least 1")
        sizes: dict[str, Any] = {**vars(shape), field: value}
        shape = type(shape)(**sizes)
    if "num_attention_heads" in overrides:
        shape = family_of(shape).regrouped(shape, before)
    return shape


def _check(shape: Shape) -> None:
    family_of(shape).check(shape)
    if shape.sequence_length < _LEAST_LENGTH:
        raise UsageError(
            f"--sequence-length {shape.sequence_length} leaves nothing to attend to: use at least "
            f"{_LEAST_LENGTH}"
        )
    padding = getattr(shape, "padding_idx", None)
    if padding is not None and padding >= shape.vocab_size:
        raise UsageError(f"padding_idx {padding} is no token: use less than {shape.vocab_size}")
