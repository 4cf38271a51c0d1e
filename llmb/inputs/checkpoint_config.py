"""The ``config.json`` of a Hugging Face checkpoint: its shape, or the reason of a refusal.

A configuration is refused if the reference model would compute a different function with the same
weights. Example: a checkpoint with quantised weights.
"""

from __future__ import annotations

import json
from pathlib import Path

from pydantic import BaseModel, ValidationError

from llmb.errors import BundleRefusedError, UsageError
from llmb.families import FAMILIES, family_of
from llmb.families.hugging_face import HuggingFaceConfig
from llmb.records import members
from llmb.reference.shapes import Shape

#: Most bytes of a ``config.json`` without weights.
_MOST_BYTES = 2**20
#: Fields of a shape that belong to the run instead of the weights.
_OWN = {"sequence_length", "padding_idx", "initializer_range"}


class _Kind(BaseModel):
    model_type: str


#: The configuration of each family, by ``model_type``.
_KINDS = {one.name: one.checkpoint for one in FAMILIES.values() if one.checkpoint is not None}


def readable() -> str:
    """Return the families of which llmb reads checkpoints. Example: "gpt2, llama and qwen3"."""
    *others, last = _KINDS
    return f"{', '.join(others)} and {last}"


def shape_of(folder: Path) -> Shape:
    """Return the shape of the checkpoint in ``folder``, with the longest allowed sequence.

    Raises:
        UsageError: no checkpoint, or a model that the reference does not compute.
    """
    return _read(folder).shape(folder)


def check_shape(folder: Path, shape: Shape) -> tuple[str, ...]:
    """Compare the configuration in ``folder`` with ``shape``; return notes for the user.

    Raises:
        UsageError: the configuration is of a different model, or allows only shorter sequences.
    """
    config = _read(folder)
    stated = config.shape(folder)
    if type(stated) is not type(shape):
        raise UsageError(
            f"--weights {str(folder)!r} is a {family_of(stated).name}: the workload is another "
            "family"
        )
    for field, value in vars(stated).items():
        if field not in _OWN and getattr(shape, field) != value:
            raise UsageError(
                f"--weights {str(folder)!r} has {field} {value}, the workload "
                f"{getattr(shape, field)}: choose the workload that the weights are of"
            )
    if shape.sequence_length > stated.sequence_length:
        raise UsageError(
            f"--sequence-length {shape.sequence_length} is longer than the model of --weights "
            f"{str(folder)!r} has positions: use at most {stated.sequence_length}"
        )
    return config.notes()


def shape_of_file(path: Path) -> tuple[Shape, tuple[str, ...]]:
    """Return the shape of a model from its ``config.json`` alone, and notes for the user.

    Without weights, quantisation and the scaling of rotary positions change neither sizes nor work:
    they are left out, with a note.

    Raises:
        UsageError: no configuration, or a model that the reference does not compute.
    """
    told = f"--from-hf {str(path)!r}"
    try:
        raw = json.loads(members.read_file(path, _MOST_BYTES))
        if not isinstance(raw, dict):
            raise ValueError("an object is needed")
    except BundleRefusedError as error:  # no regular file, or a huge file
        raise UsageError(f"--from-hf: {error}") from None
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{told} is not JSON ({error})") from None
    notes = []
    if raw.pop("quantization_config", None) is not None:
        notes.append("the quantisation of the weights is left out")
    for name in ("rope_scaling", "rope_parameters"):
        stated = raw.get(name)
        if not isinstance(stated, dict):
            continue
        kind = stated.get("rope_type", stated.get("type", "default"))
        if kind != "default":
            raw[name] = {key: stated[key] for key in ("rope_theta",) if key in stated}
            notes.append(f"the scaling of the rotary positions ({kind}) is left out")
    try:
        config = _parsed(path, json.dumps(raw).encode())
        return config.shape(path), (*notes, *config.notes())
    except UsageError as error:
        text = str(error).replace(repr(str(path / "config.json")), repr(str(path)), 1)
        raise UsageError(text.replace(f"--weights {str(path)!r}", told, 1)) from None


def _read(folder: Path) -> HuggingFaceConfig:
    """Return the configuration in ``folder``, checked against the values the reference requires."""
    path = folder / "config.json"
    try:
        raw = path.read_bytes()
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise UsageError(
            f"--weights {str(folder)!r} is no Hugging Face checkpoint: config.json: {why}"
        ) from None
    return _parsed(folder, raw)


def _parsed(folder: Path, raw: bytes) -> HuggingFaceConfig:
    """Return the configuration in ``raw``; messages name ``folder``."""
    path = folder / "config.json"
    try:
        kind = _Kind.model_validate_json(raw).model_type
        if kind not in _KINDS:
            raise UsageError(
                f"--weights {str(folder)!r} is a {kind!r}: llmb reads weights of {readable()}"
            )
        config: HuggingFaceConfig = _KINDS[kind].model_validate_json(raw)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise UsageError(f"{str(path)!r}: {where + ': ' if where else ''}{first['msg']}") from None
    if config.quantization_config is not None:
        raise UsageError(
            f"--weights {str(folder)!r} is quantised: use the weights it was made from"
        )
    for field, value in config.required.items():
        found = getattr(config, field)
        if found != value:
            raise UsageError(
                f"--weights {str(folder)!r}: {field} is {found!r}: the {kind} of llmb has {value!r}"
            )
    return config
