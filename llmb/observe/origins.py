"""Find the origin of loaded code: Python, llmb, torch, vendor library, plugin or system.

Origins are derived from file locations and package metadata; nothing is imported.
"""

from __future__ import annotations

import getpass
import re
import sys
import sysconfig
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import cached_property
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import NamedTuple

import llmb
from llmb.config import environment
from llmb.errors import UnavailableError
from llmb.observe.closed_components import _closure
from llmb.observe.recorded_files import RecordedFiles, source_of
from llmb.plugin.discovery import (
    mentioned,
    normalised,
    owners,
    source_root,
    torch_extensions,
    version_of,
)
from llmb.records.evidence import Origin
from llmb.records.redact import homes

_EVERYBODY = ("torch", "llmb")
#: Variables that name a folder of a compiler's products.
_CACHES = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "TRITON_HOME", "TORCH_EXTENSIONS_DIR")
_SYSTEM = tuple(map(Path, ("/lib", "/lib32", "/lib64", "/usr", "/opt", "/nix", "/System")))
_DELETED = " (deleted)"


class CodeOrigin(NamedTuple):
    """The owner of a file, and a name for the file that does not reveal local folders.

    A tuple, and no frozen dataclass: a plugin could change ``UNKNOWN`` in place.
    """

    origin: Origin
    #: Normalised name of the package that owns the file, None without an owner.
    distribution: str | None
    name: str


UNKNOWN = CodeOrigin("unknown", None, "")


class Origins:
    """Finds the owner of files, in a run of a single plugin."""

    def __init__(self, module: str, owner: str) -> None:
        """Prepare for the plugin in ``module`` of the package ``owner``."""
        self._plugin = normalised(owner)
        self._plugin_files = _files_of(module)
        everybodys = _closure(_EVERYBODY)
        brought = {self._plugin, *map(normalised, torch_extensions())} - everybodys
        #: Packages that the plugin needs (or torch loads by itself) and neither torch nor llmb.
        self.libraries = _closure(brought, extras=True) - everybodys - {self._plugin}
        #: Source folders of packages installed in place (``pip install -e``).
        self._sources = {
            folder: name
            for name in (self._plugin, *sorted(self.libraries))
            if (folder := _source_folder(name)) is not None
        }
        self._recorded = RecordedFiles()
        self._places: dict[str, CodeOrigin] = {}

    def of(self, file: str) -> CodeOrigin:
        """Return the origin of ``file``; unknown for names such as ``<string>``."""
        if file not in self._places:
            self._places[file] = self._find(file)
        return self._places[file]

    def brought_files(self) -> Iterator[tuple[Path, CodeOrigin, bool]]:
        """Yield the files that the plugin's package, and packages that came with it, list.

        Each with the origin, and whether the package is installed in place. Packages that torch or
        llmb need are left out.
        """
        for owner in (self._plugin, *sorted(self.libraries)):
            if owner not in self._needed:
                origin, in_place = self._origin_of(owner), _source_folder(owner) is not None
                for name, path in self._recorded.listed(owner):
                    yield path, CodeOrigin(origin, owner, name), in_place

    def of_module(self, module: str) -> CodeOrigin:
        """Return the origin of the imported ``module``."""
        if module.partition(".")[0] in sys.stdlib_module_names:
            return CodeOrigin("python", None, module)
        there = sys.modules.get(module)
        file = getattr(there, "__file__", None) or next(
            iter(getattr(there, "__path__", ())), module
        )
        return self.of(str(file))

    def _find(self, file: str) -> CodeOrigin:
        if file.startswith("<frozen"):
            return CodeOrigin("python", None, file)
        path = Path(file.removesuffix(_DELETED))
        with suppress(OSError):
            path = path.resolve()
        if not path.is_absolute():
            return CodeOrigin("unknown", None, file)
        if path.is_relative_to(_LLMB) and (
            not self._is_installed or self._recorded.belongs(path, "llmb")
        ):
            return CodeOrigin("llmb", None, _below(path, _LLMB))
        if self._plugin_files is not None and path.is_relative_to(self._plugin_files):
            return CodeOrigin("plugin", self._plugin, _below(path, self._plugin_files))
        inside = _longest(path, self._package_folders)
        packaged = None if inside is None else self._of_package(path, inside)
        if packaged is not None and packaged.origin != "unknown":
            return packaged
        # The content of a deleted file cannot be compared.
        linked = None if file.endswith(_DELETED) else self._recorded.at(path)
        if linked is not None:
            return CodeOrigin(self._origin_of(linked.owner), linked.owner, linked.name)
        source = _longest(path, self._sources)
        if source is not None:
            owner = self._sources[source]
            return CodeOrigin(self._origin_of(owner), owner, _below(path, source))
        return packaged or self._of_the_machine(path)

    def _of_the_machine(self, path: Path) -> CodeOrigin:
        name = path.name
        if any(path.is_relative_to(folder) for folder in self._python_folders):
            return CodeOrigin("python", None, name)
        if any(path.is_relative_to(folder) for folder in _caches()):
            return CodeOrigin("compiler", None, name)
        known = any(path.is_relative_to(folder) for folder in _SYSTEM)
        known = known or (path.is_relative_to("/dev") and not path.is_relative_to("/dev/shm"))
        return CodeOrigin("system" if known else "unknown", None, name)

    def _of_package(self, path: Path, folder: Path) -> CodeOrigin:
        inside = path.relative_to(folder)
        owners = [
            owner
            for owner in self._owners(inside.parts[0])
            # Anybody can write metadata with the name of a package that torch needs.
            if owner not in self._needed or self._recorded.belongs(path, owner)
        ]
        name = inside.as_posix()
        for owner in owners:
            origin = self._origin_of(owner)
            if origin != "other":
                return CodeOrigin(origin, owner, name)
        return CodeOrigin("other" if owners else "unknown", next(iter(owners), None), name)

    def _origin_of(self, owner: str) -> Origin:
        if owner == self._plugin:
            return "plugin"
        if owner in self.libraries:
            return "library"
        return "needed" if owner in self._needed else "other"

    def _owners(self, top: str) -> list[str]:
        """Return the packages that own the file or folder ``top`` of a site folder."""
        bare = re.sub(r"\.(libs|dylibs|py|pyc)$|\.(cpython|abi3|pypy)[-.].*", "", top)
        named = map(normalised, owners(bare))
        # Files added by a wheel repair tool carry the package's own name, such as numpy.libs.
        return list(named) or [name for name in [normalised(bare)] if version_of(name)]

    @cached_property
    def _package_folders(self) -> tuple[Path, ...]:
        """Every folder that packages are imported from, except Python's own."""
        folders = {Path(entry or ".").resolve() for entry in sys.path}
        return tuple(folder for folder in folders - {*self._python_folders} if folder.exists())

    @cached_property
    def _is_installed(self) -> bool:
        """Whether llmb runs from the files of an installed package, and not from a checkout.

        Another package may put files into llmb's folder.
        """
        return self._recorded.belongs(_LLMB / "__init__.py", "llmb")

    @cached_property
    def _python_folders(self) -> tuple[Path, ...]:
        return tuple(_python_folders())

    @cached_property
    def _needed(self) -> set[str]:
        return _needed_by_everybody()


_LLMB = Path(llmb.__file__).resolve().parent


def _below(path: Path, folder: Path) -> str:
    return path.relative_to(folder.parent).as_posix()


def _files_of(module: str) -> Path | None:
    """Return the folder of the plugin's package, or the file of a single-file plugin."""
    try:
        root = source_root(module)
    except UnavailableError:
        return None
    folder = root.folder / root.package.replace(".", "/")
    return folder if folder.is_dir() else folder.with_suffix(".py")


def _source_folder(name: str) -> Path | None:
    try:
        return source_of(distribution(name))
    except PackageNotFoundError:
        return None


def _needed_by_everybody() -> set[str]:
    """Return the packages torch and llmb may import, for any extra or platform.

    These are torch and llmb and, repeatedly, all installed packages named in the metadata.
    """
    found: set[str] = set()
    waiting = list(map(normalised, _EVERYBODY))
    while waiting:
        name = waiting.pop()
        if name not in found and version_of(name) is not None:
            found.add(name)
            waiting += map(normalised, mentioned(name))
    return found


def _longest(path: Path, folders: Iterable[Path]) -> Path | None:
    inside = [folder for folder in folders if path.is_relative_to(folder)]
    return max(inside, key=lambda folder: len(folder.parts), default=None)


def _python_folders() -> Iterator[Path]:
    paths = sysconfig.get_paths()
    for place in {paths["stdlib"], paths["platstdlib"]}:
        yield Path(place).resolve()
        yield Path(place).resolve() / "lib-dynload"
    yield Path(sys.base_prefix).resolve() / "lib"


def _caches() -> Iterator[Path]:
    variables = environment()
    yield from (Path(variables[name]).resolve() for name in _CACHES if variables.get(name))
    for home in map(Path.resolve, homes()):
        yield from (home / ".triton", home / ".cache" / "torch_extensions")
    with suppress(Exception):  # a user without a name
        yield Path(tempfile.gettempdir()).resolve() / f"torchinductor_{_user()}"


def _user() -> str:
    # As torch's compiler names the folder (torch/_inductor/runtime/cache_dir_utils.py).
    return re.sub(r'[\\/:*?"<>|]', "_", getpass.getuser())
