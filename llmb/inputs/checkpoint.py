"""The weights of a Hugging Face checkpoint, by our names and in our sizes, a tensor at a time."""

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
from llmb.families import FAMILIES, family_of
from llmb.inputs.checkpoint_config import check_shape, shape_of
from llmb.reference.shapes import Shape

__all__ = ["Checkpoint", "open_checkpoint", "shape_of"]

_SINGLE, _INDEX = "model.safetensors", "model.safetensors.index.json"
_DTYPES = ("F64", "F32", "F16", "BF16")
#: Tensors that some versions of the library stored and that are no weights: tables and masks.
_TABLES = (".rotary_emb.inv_freq", ".attn.bias", ".attn.masked_bias")
_CHUNK = 2**24


class _Index(BaseModel):
    weight_map: dict[str, str]


@dataclass(frozen=True)
class StoredTensor:
    """Where a parameter is stored, and how."""

    file: Path
    name: str
    #: Its size as the model has it.
    size: tuple[int, ...]
    turned: bool


@dataclass(frozen=True)
class Checkpoint:
    """Every weight of a model in safetensors files; nothing of them is in memory."""

    folder: Path
    places: Mapping[str, StoredTensor]
    #: What a user should know about these weights in this model.
    notes: tuple[str, ...] = ()

    def value(self, name: str, size: Sequence[int] | None = None) -> Any:
        """Return parameter ``name`` as a torch tensor on the CPU, in the dtype it is stored in.

        A copy of its own: a file that changes later changes no weight. May be called from several
        threads. (``Any``: rooms that import this do without torch, and loading does not.)

        Raises:
            UsageError: the model has it, and at ``size``, but the checkpoint has not.
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
        """The sha256 of the listing of configuration and weight files, as ``sha256sum`` writes it.

        Computed when first asked for: all files are read.
        """
        files = {place.file for place in self.places.values()} | {self.folder / "config.json"}
        listing = "".join(
            f"{_sha256(file)}  {file.name}\n" for file in sorted(files, key=lambda file: file.name)
        )
        return hashlib.sha256(listing.encode()).hexdigest()


def open_checkpoint(folder: Path, shape: Shape) -> Checkpoint:
    """Return the weights in ``folder`` for the model of ``shape``, all found and of its sizes.

    Reads the configuration and the headers of the files, not the weights, and needs no torch.

    Raises:
        UsageError: no checkpoint, another model, a tensor missing, too many or of another size.
    """
    family = family_of(shape)
    if family.checkpoint is None or not getattr(shape, "gated", True):
        known = " and ".join(name for name, one in FAMILIES.items() if one.checkpoint is not None)
        raise UsageError(f"--weights works with workloads of the families {known} only")
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
    """Return which file holds each tensor that the checkpoint has."""
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
    """Compare what the files say of their tensors with what the model needs."""
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
    """Open a safetensors file; what is wrong with it becomes a UsageError."""
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
