"""Workloads: named models with fixed shapes, and the FLOPs and memory of a token.

Example: ``llama-1.4b``, or a user's own file NAME.json with ``family`` and sizes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

from pydantic import TypeAdapter, ValidationError

from llmb.config import Definition, Mode, RunConfig, RunRequest, ShapeName
from llmb.errors import UsageError, did_you_mean
from llmb.families import SHAPES, family_of
from llmb.reference.shapes import Shape
from llmb.workloads.table import LADDER, WORKLOADS
from llmb.workloads.workload import Workload

__all__ = ["LADDER", "WORKLOADS", "Workload", "define", "find", "mode_of", "of"]

#: Names allowed for workloads: the name of a run directory contains the workload's name.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", re.ASCII)


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
    if name in WORKLOADS:
        raise UsageError(f"workload {name!r} is one of llmb's own: choose another name")
    if not _NAME.fullmatch(name):
        raise UsageError(f"workload {name!r}: a name may hold letters, digits and . _ - only")
    sizes = dict(definition)
    family = sizes.pop("family", None)
    if family not in SHAPES:
        raise UsageError(f"workload {name!r}: family {family!r} is none of {', '.join(SHAPES)}")
    kind = SHAPES[str(family)]
    known = [field.name for field in fields(kind)]
    unknown = sorted(sizes.keys() - set(known))
    if unknown:
        raise UsageError(
            f"workload {name!r}: {unknown[0]!r} is no size of {family} (it has {', '.join(known)})"
            f"{did_you_mean(unknown[0], known)}"
        )
    try:
        shape: Shape = TypeAdapter(kind).validate_python(sizes)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise UsageError(f"workload {name!r}: {where}: {first['msg']}") from None
    for field, value in vars(shape).items():
        if isinstance(value, int) and field != "padding_idx" and value < 1:
            raise UsageError(f"workload {name!r}: {field} is {value}: it must be at least 1")
    return Workload(name, shape, None, modes=family_of(shape).modes)


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
    if shape.sequence_length < 2:
        raise UsageError("--sequence-length 1 leaves no next token to predict: use at least 2")
