"""Site files: account, queue, modules, network and more of a cluster, in TOML.

A value with a line break, or with characters that could end a directive, is refused here. The
writers of job files quote every value besides.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, Field, ValidationError

from llmb.config import Frozen
from llmb.errors import UsageError, did_you_mean

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_MOST_BYTES = 2**20
#: Characters of a wrong value that are repeated.
_SHOWN = 60
#: Variables that launchers set in the environment of each rank.
_OF_LAUNCHERS = (
    *("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "NODE_RANK"),
    *("MASTER_ADDR", "MASTER_PORT"),
)


_INTERFACES = r"^[A-Za-z0-9_][A-Za-z0-9_.-]*(,[A-Za-z0-9_][A-Za-z0-9_.-]*)*$"


def _line(text: str) -> str:
    if not text or not text.isprintable():
        raise ValueError("one line of readable characters is needed")
    return text


def _line_or_nothing(text: str) -> str:
    return text and _line(text)


def _of_nobody_else(name: str) -> str:
    if name in _OF_LAUNCHERS or name.startswith(("PET_", "SLURM_", "TORCHELASTIC_")):
        raise ValueError("the launcher sets this variable; leave it out")
    return name


_Line = Annotated[str, AfterValidator(_line)]
_Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.,:@+-]{0,99}$")]
_Variable = Annotated[
    str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,99}$"), AfterValidator(_of_nobody_else)
]
_Resource = Annotated[str, Field(pattern=r"^[a-z0-9]([a-z0-9./-]{0,250}[a-z0-9])?$")]


class Site(Frozen):
    """The keys of a site file. Every key is optional."""

    #: The project that pays: ``sbatch --account``, ``qsub -A``.
    account: _Name | None = None
    #: The partition of Slurm, the queue of PBS.
    partition: _Name | None = None
    qos: _Name | None = None
    #: Kind of node, for example ``gpu&hbm80g``.
    constraint: (
        Annotated[str, Field(pattern=r"^[A-Za-z0-9_(\[][A-Za-z0-9_.,:@+&|*()\[\]-]{0,99}$")] | None
    ) = None
    #: For ``module load``, in this order.
    modules: tuple[
        Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.,+/-]{0,199}$")], ...
    ] = ()
    #: Folder of a Python environment with llmb; job files source ``bin/activate``.
    venv: Annotated[str, Field(pattern=r"^/"), AfterValidator(_line)] | None = None
    image: Annotated[str, Field(pattern=r"^[A-Za-z0-9/][A-Za-z0-9_.:/@+-]{0,499}$")] | None = None
    #: Words before the program of a node, for example ``apptainer exec {image}``.
    container: tuple[_Line, ...] = ()
    #: Network interfaces of the ranks, for example ``hsn0`` or ``hsn0,hsn1``.
    interface: Annotated[str, Field(pattern=_INTERFACES)] | None = None
    environment: Mapping[_Variable, Annotated[str, AfterValidator(_line_or_nothing)]] = {}
    #: Further directives, for example ``--mem=0`` or ``-l filesystems=home``.
    directives: tuple[Annotated[str, Field(pattern=r"^-"), AfterValidator(_line)], ...] = ()
    #: Normally the number of devices of a node.
    ranks_per_node: Annotated[int, Field(strict=True, ge=1, le=1024)] | None = None
    #: Kubernetes: name of a device, for example ``vendor.example/gpu``.
    resource: _Resource | None = None
    #: Kubernetes: further limits of a pod, for example ``memory = "512Gi"``.
    limits: Mapping[
        _Resource, Annotated[str, Field(pattern=r"^[0-9]+(\.[0-9]+)?[A-Za-z]{0,2}$")]
    ] = {}
    #: Kubernetes: persistent volume claim for the run directories.
    claim: Annotated[str, Field(pattern=r"^[a-z0-9]([a-z0-9.-]{0,250}[a-z0-9])?$")] | None = None

    @property
    def variables(self) -> dict[str, str]:
        """Environment variables of every rank; ``environment`` overrides ``interface``."""
        names = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
        networks = dict.fromkeys(names, self.interface) if self.interface else {}
        return {**networks, **self.environment}

    @property
    def before_program(self) -> tuple[str, ...]:
        """Words before the program of a node, with the name of the image; empty: no container."""
        return tuple(word.replace("{image}", self.image or "") for word in self.container)


#: Key -> how to write a value whose pattern does not match.
_RULES = {
    "account": "letters, digits and . _ , : @ + - are allowed",
    "partition": "letters, digits and . _ , : @ + - are allowed",
    "qos": "letters, digits and . _ , : @ + - are allowed",
    "constraint": "letters, digits and . _ , : @ + - & | * ( ) [ ] are allowed",
    "modules": "letters, digits and . _ , + / - are allowed",
    "venv": "write the whole path, from /",
    "image": "letters, digits and . _ : / @ + - are allowed",
    "interface": "write it as hsn0, or hsn0,hsn1",
    "environment": "letters, digits and _ are allowed",
    "directives": "write it as it follows #SBATCH or #PBS: --mem=0",
    "resource": "write it as vendor.example/gpu",
    "limits": 'write it as memory = "512Gi"',
    "claim": "small letters, digits and . - are allowed",
}
_TYPES = {
    "string_type": "text in quotes is needed",
    "tuple_type": 'a list is needed, as in ["a", "b"]',
    "dict_type": 'a table is needed, as in { NAME = "value" }',
    "int_type": "a whole number is needed",
    "greater_than_equal": "1 or more is needed",
}


def load(path: Path) -> Site:
    """Read the site file ``path``.

    Raises:
        UsageError: the file cannot be read, is not TOML, or has an unknown key or a wrong value.
    """
    where = f"--site {path}"
    try:
        with path.open("rb") as file:
            raw = file.read(_MOST_BYTES + 1)
        if len(raw) > _MOST_BYTES:
            raise UsageError(f"{where}: longer than {_MOST_BYTES} bytes: that is no site file")
        data = tomllib.loads(raw.decode())
    except OSError as error:
        raise UsageError(f"{where}: cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        said = (str(error) or type(error).__name__).splitlines()[0]
        raise UsageError(f"{where}: not TOML: {said}") from None
    return checked(data, f"{where}: ")


def checked(data: Mapping[str, Any], before: str) -> Site:
    """Validate ``data``; error messages begin with ``before``.

    Raises:
        UsageError: a key is unknown, or a value has the wrong type or characters.
    """
    try:
        return Site.model_validate(data)
    except ValidationError as error:
        raise UsageError(before + _first_fault(error)) from None


def _first_fault(error: ValidationError) -> str:
    """Return one line: the first wrong key, the wrong value, and how to write the value."""
    first = error.errors()[0]
    key, *rest = map(str, first["loc"])
    where = ".".join((key, *(name for name in rest if name != "[key]")))
    if first["type"] == "extra_forbidden":
        hint = did_you_mean(key, Site.model_fields)
        return f"{key!r} is unknown; keys are {', '.join(Site.model_fields)}{hint}"
    given = repr(first["input"])
    shown = given if len(given) <= _SHOWN else f"{given[:_SHOWN]}..."
    if first["type"] == "string_pattern_mismatch":
        said = _RULES[key]
    else:
        said = _TYPES.get(first["type"], first["msg"].removeprefix("Value error, "))
    return f"{where if where.isprintable() else key} is {shown}: {said}"
