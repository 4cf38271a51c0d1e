"""A user's own workload as a JSON file: the keys, the reader, and faults with their lines.

JSON has no comments: a key that begins with ``//`` is a comment. Example: ``"//": "a first try"``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model

from llmb.config import Definition
from llmb.errors import BundleRefusedError, UsageError, did_you_mean
from llmb.families import FAMILIES, SHAPES
from llmb.records import members
from llmb.reference.shapes import Shape

SCHEMA: Literal["llmb.workload/1"] = "llmb.workload/1"
#: A key that begins so is a comment.
COMMENT = "//"
#: Names allowed for workloads: the name of a run directory contains the workload's name.
NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}"
#: Most bytes of a file, largest size, and most layers: the parameters of each layer are counted.
_MOST_BYTES, _MOST, _MOST_LAYERS = 64 * 1024, 2**31 - 1, 10_000
_SPACE = re.compile(r"\s*", re.ASCII)


def _count(meaning: str, least: int = 1, most: int = _MOST) -> Any:
    return Field(ge=least, le=most, description=meaning)


def _number(meaning: str) -> Any:
    return Field(gt=0, allow_inf_nan=False, description=meaning)


#: Sizes of several families: limits and meaning.
_COMMON: dict[str, Any] = {
    "vocab_size": _count("Tokens of the vocabulary: rows of the embedding and of the head."),
    "hidden_size": _count("Channels between the layers, a multiple of num_attention_heads."),
    "intermediate_size": _count("Channels inside the feed-forward network of a layer."),
    "num_hidden_layers": _count("Layers of the model.", most=_MOST_LAYERS),
    "num_attention_heads": _count("Query heads of a layer."),
    "num_key_value_heads": _count(
        "Key-value heads of a layer. With fewer than num_attention_heads, query heads share keys "
        "and values. Example: 8 for 32 query heads."
    ),
    "sequence_length": _count("Tokens of a training sequence.", least=3),
    "max_position_embeddings": _count("Positions with a learned vector: the longest sequence."),
    "rms_norm_eps": _number("Constant under the square root of each RMSNorm."),
    "layer_norm_epsilon": _number("Constant under the square root of each LayerNorm."),
    "layer_norm_eps": _number("Constant under the square root of each LayerNorm."),
    "rope_theta": _number("Base of the rotary positions."),
    "initializer_range": _number("Standard deviation of the initial weights."),
    "padding_idx": _count("Token whose embedding is zero and gets no gradient, or null.", least=0),
    "type_vocab_size": _count("Kinds of sentences: 2 tells the first sentence from the second."),
    "dropout": Field(
        ge=0, lt=1, description="Share of values that dropout sets to zero in training."
    ),
}
#: Every size of a family.
SIZES: dict[str, Any] = _COMMON | {
    name: (_number if isinstance(getattr(kind, name), float) else _count)(meaning)
    for family, kind in SHAPES.items()
    for name, meaning in FAMILIES[family].meanings.items()
}
#: Words for a value of a wrong type, by pydantic's name of the error.
_TYPES = {
    "int_type": "write a whole number",
    "int_from_float": "write a whole number",
    "float_type": "write a number",
    "string_type": "write a text",
    "literal_error": f"write {SCHEMA}",
    "string_pattern_mismatch": "use letters, digits and . _ -",
}
#: Words for a value outside of its limits: pydantic's name of the limit -> words.
_LIMITS = {"ge": "at least", "gt": "more than", "le": "at most", "lt": "less than"}


@dataclass(frozen=True)
class WrittenKey:
    """One key of a file, with its value and its line, counted from 1."""

    key: str
    value: Any
    line: int


@dataclass(frozen=True)
class Fault:
    """One fault of a definition: the key, and the fault in words."""

    key: str
    text: str


class WorkloadFile(BaseModel):
    """The keys that files of all families have."""

    model_config = ConfigDict(
        extra="forbid",
        strict=True,
        json_schema_extra={"patternProperties": {f"^{COMMENT}": {}}},
    )

    schema_: Literal["llmb.workload/1"] = Field(
        SCHEMA, alias="schema", description="Version of the format."
    )
    name: str | None = Field(
        None,
        pattern=f"^{NAME}$",
        description="Name in records and tables; left out, the name of the file.",
    )


def _model(name: str) -> type[WorkloadFile]:
    """Return the model of files of family ``name``: each size is optional."""
    kind, follows = SHAPES[name], FAMILIES[name].follows
    hints = get_type_hints(kind)
    sizes: dict[str, Any] = {"family": (Literal[name], Field(description="Kind of model."))}
    for field in fields(kind):
        value = hints[field.name] | None if field.name in follows else hints[field.name]
        sizes[field.name] = (Annotated[value, SIZES[field.name]], field.default)
    about = f"Sizes of a model of the family {name}. Keys that begin with // are comments."
    return create_model(name, __base__=WorkloadFile, __doc__=about, **sizes)


#: The model of a file, by family. The dicts also serve docs/workloads.md and the JSON Schema.
MODELS: dict[str, type[WorkloadFile]] = {name: _model(name) for name in SHAPES}
FILE: Any = Annotated[Union[tuple(MODELS.values())], Field(discriminator="family")]  # noqa: UP007


def entries(text: str) -> list[WrittenKey]:
    """Return the keys of a file with their lines, comments left out.

    Raises:
        json.JSONDecodeError: not one JSON object.
    """
    decoder = json.JSONDecoder()
    try:
        whole = decoder.decode(text)
    except RecursionError:
        raise json.JSONDecodeError("nested too deep", text, 0) from None
    except ValueError as error:
        if isinstance(error, json.JSONDecodeError):
            raise
        raise json.JSONDecodeError(f"a number is too long ({error})", text, 0) from None
    if not isinstance(whole, dict):
        raise json.JSONDecodeError("write an object of family and sizes", text, 0)
    found = []
    at = _skip(text, _skip(text, 0) + 1)
    while text[at] != "}":
        line = text.count("\n", 0, at) + 1
        key, at = decoder.raw_decode(text, at)
        value, at = decoder.raw_decode(text, _skip(text, _skip(text, at) + 1))
        found.append(WrittenKey(key, value, line))
        at = _skip(text, at)
        at = _skip(text, at + 1) if text[at] == "," else at
    return [entry for entry in found if not entry.key.startswith(COMMENT)]


def _skip(text: str, at: int) -> int:
    """Return the place of the first character at ``at`` or later that is no space."""
    found = _SPACE.match(text, at)
    return found.end() if found else at


def read_text(path: Path) -> str:
    """Return the text of a workload file of at most 64 KiB.

    Raises:
        UsageError: no readable text file, or a larger file.
    """
    try:
        return members.read_file(path, _MOST_BYTES).decode("utf-8-sig")
    except BundleRefusedError as error:  # no regular file, or a huge file
        raise UsageError(f"--workload: {error}") from None
    except UnicodeDecodeError:
        raise UsageError(f"--workload {path}: not readable text") from None


def repeated(found: list[WrittenKey]) -> list[Fault]:
    """Return a fault for each key that stands in a file twice."""
    first: dict[str, int] = {}
    twice = [one for one in found if first.setdefault(one.key, one.line) != one.line]
    return [
        Fault(each.key, f"{each.key!r} stands in line {first[each.key]}, too") for each in twice
    ]


def definition_of(found: list[WrittenKey]) -> Definition:
    """Return family and sizes, with the sizes that follow from other sizes written out.

    Example: ``{"family": "llama", "num_attention_heads": 16}`` gets 16 key-value heads.
    """
    given = {each.key: each.value for each in found if each.key not in ("schema", "name")}
    family = FAMILIES.get(str(given.get("family")))
    for size, (source, times) in (family.follows if family else {}).items():
        if given.get(size) is not None:
            continue
        given.pop(size, None)
        value = given.get(source)
        if isinstance(value, int):
            given[size] = times * value
    return given


def faults(definition: Mapping[str, Any]) -> list[Fault]:
    """Return every key with a wrong name, type or value, sorted by key.

    Sizes that do not fit together are left to ``llmb.workloads.faults``.
    """
    family = definition.get("family")
    if "family" not in definition and "model_type" in definition:
        told = "this is a Hugging Face configuration: llmb workload new NAME --from-hf FILE"
        return [Fault("model_type", f"{told} makes a workload file of it")]
    if not isinstance(family, str) or family not in SHAPES:
        near = did_you_mean(str(family), SHAPES)
        first = Fault("family", f"family {family!r} is none of {', '.join(SHAPES)}{near}")
        strange = sorted(definition.keys() - {"family", "schema", "name", *SIZES})
        return [first, *(Fault(key, f"{key!r} is no size of any family") for key in strange)]
    try:
        MODELS[family].model_validate(dict(definition))
    except ValidationError as error:
        found = [_fault(family, dict(each)) for each in error.errors(include_url=False)]
        return sorted(found, key=lambda fault: fault.key)
    return []


def _fault(family: str, error: Mapping[str, Any]) -> Fault:
    key, kind = str(error["loc"][0]), error["type"]
    if kind == "extra_forbidden":
        known = [field.name for field in fields(SHAPES[family])]
        near = did_you_mean(key, known) or f" (it has {', '.join(known)})"
        return Fault(key, f"{key!r} is no size of {family}{near}")
    limit = next((name for name in _LIMITS if name in error.get("ctx", {})), None)
    if limit is None:
        told = _TYPES.get(kind, error["msg"])
    else:
        value = error["ctx"][limit]
        told = f"it must be {_LIMITS[limit]} {f'{value:g}' if isinstance(value, float) else value}"
    return Fault(key, f"{key} is {_shortened(error['input'])}: {told}")


def _shortened(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 40 else f"{text[:37]}..."


def default_of(family: str, key: str) -> str:
    """Return the default of a size in words. Examples: ``12``, ``4 x hidden_size``."""
    source, times = FAMILIES[family].follows.get(key, ("", 1))
    if source:
        return f"{times} x {source}" if times > 1 else source
    return json.dumps(getattr(SHAPES[family], key))


def template(name: str, shape: Shape, notes: tuple[str, ...] = ()) -> str:
    """Return the text of a workload file in which a comment explains every key."""
    family = next(known for known, kind in SHAPES.items() if kind is type(shape))
    properties = MODELS[family].model_fields
    head = f"Sizes of a workload. Keys that begin with // are comments. Family: {family}."
    blocks = [
        _lines({"schema": SCHEMA, COMMENT: [head, *notes] if notes else head}),
        _lines({f"{COMMENT}name": properties["name"].description, "name": name}),
        _lines({f"{COMMENT}family": f"One of {', '.join(SHAPES)}.", "family": family}),
    ]
    for key, value in vars(shape).items():
        told = f"{properties[key].description} Default: {default_of(family, key)}."
        blocks.append(_lines({f"{COMMENT}{key}": told, key: value}))
    return "{\n" + ",\n\n".join(blocks) + "\n}\n"


def _lines(pairs: Mapping[str, object]) -> str:
    return ",\n".join(f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in pairs.items())
