"""Weights of a Hugging Face checkpoint, by llmb's names and sizes, read tensor by tensor."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError
from safetensors import SafetensorError, safe_open

from llmb.errors import UsageError
from llmb.families import family_of
from llmb.inputs.checkpoint_config import check_shape, readable, shape_of
from llmb.reference.shapes import Shape

__all__ = ["Checkpoint", "open_checkpoint", "shape_of"]

_SINGLE, _INDEX = "model.safetensors", "model.safetensors.index.json"
_DTYPES = ("F64", "F32", "F16", "BF16")
#: Stored tensors that are tables or masks instead of weights, from some versions of transformers.
_TABLES = (".rotary_emb.inv_freq", ".attn.bias", ".attn.masked_bias")
_CHUNK = 2**24


class _Index(BaseModel):
    weight_map: dict[str, str]


@dataclass(frozen=True)
class StoredTensor:
    """The file and the tensor of a parameter in the checkpoint."""

    file: Path
    name: str
    #: The size of the parameter in the model.
    size: tuple[int, ...]
    turned: bool


@dataclass(frozen=True)
class Checkpoint:
    """All weights of a model in safetensors files; no weight is kept in memory."""

    folder: Path
    places: Mapping[str, StoredTensor]
    #: Notes for the user about the weights in the model.
    notes: tuple[str, ...] = ()

    def value(self, name: str, size: Sequence[int] | None = None) -> Any:
        """Return parameter ``name`` as a torch tensor on the CPU, in the stored dtype.

        The tensor is a copy: a later change of the file changes no weight. May be called from
        several threads. (The type is ``Any`` because the module is imported without torch.)

        Raises:
            UsageError: the checkpoint lacks the parameter, or has a size different from ``size``.
        """
        place = self.places.get(name)
        if place is None or (size is not None and tuple(size) != place.size):
            held = "none" if place is None else f"it as {list(place.size)}"
            wanted = "" if size is None else f" {list(size)}"
            raise UsageError(f"--weights {str(self.folder)!r}: {name}{wanted}: there is {held}")
        with _opened(place.file, "pt") as file:
            stored = file.get_tensor(place.name)
            return (stored.T if place.turned else stored).clone().contiguous()

    @cached_property
    def digest(self) -> str:
        """The sha256 of a listing of the configuration and weight files.

        The listing has the format of ``sha256sum``, such as ``<sha256>  config.json``, sorted by
        file name. The first use reads all files.
        """
        files = {place.file for place in self.places.values()} | {self.folder / "config.json"}
        listing = "".join(
            f"{_sha256(file)}  {file.name}\n" for file in sorted(files, key=lambda file: file.name)
        )
        return hashlib.sha256(listing.encode()).hexdigest()


def open_checkpoint(folder: Path, shape: Shape) -> Checkpoint:
    """Return the weights in ``folder`` for the model of ``shape``; check all names and sizes.

    Only the configuration and the headers of the files are read. No torch is needed.

    Raises:
        UsageError: no checkpoint, a checkpoint of a different model, or a tensor that is missing,
            unexpected or of a wrong size.
    """
    family = family_of(shape)
    if family.checkpoint is None or not getattr(shape, "gated", True):
        raise UsageError(f"--weights works with workloads of the families {readable()} only")
    notes = check_shape(folder, shape)
    held = {family.stored_name(name): (name, file) for name, file in _stored(folder).items()}
    expected = family.parameter_sizes(shape)
    missing = [name for name in expected if name not in held]
    if missing:
        raise UsageError(
            f"--weights {str(folder)!r} lacks {missing[0]}"
            + (f" and {len(missing) - 1} more" if len(missing) > 1 else "")
        )
    beyond = [
        name
        for name in held
        if name not in expected and not (name.endswith(_TABLES) or family.is_dispensable(name))
    ]
    if beyond:
        raise UsageError(
            f"--weights {str(folder)!r} has {held[beyond[0]][0]}, which the model has not"
        )
    places = {}
    for name, size in expected.items():
        stored, file = held[name]
        places[name] = StoredTensor(file, stored, size, family.is_turned(name))
    _check_headers(places.values())
    return Checkpoint(folder, places, notes)


def _stored(folder: Path) -> dict[str, Path]:
    """Return the file of each tensor of the checkpoint, by the stored name."""
    index, single = folder / _INDEX, folder / _SINGLE
    if single.exists():
        with _opened(single, "np") as file:
            return dict.fromkeys(file.keys(), single)
    if not index.exists():
        old = any(folder.glob("pytorch_model*.bin"))
        has = "weights as pytorch_model.bin only: convert them" if old else "no weights: give some"
        raise UsageError(f"--weights {str(folder)!r} has {has} in the format safetensors")
    try:
        names = _Index.model_validate_json(index.read_bytes()).weight_map
    except (OSError, ValidationError):
        raise UsageError(f"{str(index)!r} does not say which file holds which tensor") from None
    for name in set(names.values()):
        if Path(name).name != name:
            raise UsageError(f"{str(index)!r} names {name!r}, which is no file beside it")
    return {name: folder / file for name, file in names.items()}


def _check_headers(places: Iterable[StoredTensor]) -> None:
    """Compare sizes and dtypes in the headers of the files with the model's parameters."""
    by_file: dict[Path, list[StoredTensor]] = {}
    for place in places:
        by_file.setdefault(place.file, []).append(place)
    for path, held in by_file.items():
        with _opened(path, "np") as file:
            for place in held:
                header = file.get_slice(place.name)
                size, dtype = tuple(header.get_shape()), header.get_dtype()
                wanted = place.size[::-1] if place.turned else place.size
                if size != wanted or dtype not in _DTYPES:
                    raise UsageError(
                        f"{str(path)!r} has {place.name} as {dtype} {list(size)}: the model needs "
                        f"{list(wanted)} in one of {', '.join(_DTYPES)}"
                    )


@contextmanager
def _opened(path: Path, framework: str) -> Iterator[Any]:
    """Open a safetensors file; errors of reading become a UsageError."""
    try:
        with safe_open(str(path), framework=framework) as file:
            yield file
    except SafetensorError as error:
        raise UsageError(f"{str(path)!r} is damaged, or no safetensors file: {error}") from None
    except OSError as error:
        why = error.strerror or error
        raise UsageError(f"{str(path)!r} cannot be read: {why}") from None


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    try:
        with path.open("rb") as file:
            while chunk := file.read(_CHUNK):
                digest.update(chunk)
    except OSError as error:
        raise UsageError(f"{str(path)!r} cannot be read: {error.strerror}") from None
    return digest.hexdigest()
