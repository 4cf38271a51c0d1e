"""Finds installed plugins by package metadata, without importing a plugin."""

from __future__ import annotations

import csv
import os
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from importlib.metadata import (
    Distribution,
    EntryPoint,
    PackageNotFoundError,
    distributions,
    requires,
)
from importlib.util import find_spec
from inspect import getmodulename
from pathlib import Path
from shlex import quote
from types import MappingProxyType

from packaging.requirements import InvalidRequirement, Requirement

import llmb
from llmb.config import Frozen, environment
from llmb.errors import UnavailableError, did_you_mean

GROUP = "llmb"
#: The entry-point group of the packages that torch loads by itself when torch is imported.
TORCH_GROUP = "torch.backends"
#: Comma-separated names (or distributions) of the vendors' plugins to use; unset: all of them,
#: empty: none. The built-in plugins are always available. Example: LLMB_LOAD_PLUGINS=xyz.
LOAD_PLUGINS = "LLMB_LOAD_PLUGINS"
#: Name -> module of the plugins that come with llmb.
BUILT_IN = {
    "cpu": "llmb.plugin.builtin.cpu",
    "generic": "llmb.plugin.builtin.generic",
}
_NAME = re.compile(r"[A-Za-z0-9][-A-Za-z0-9._]*")
#: The source tree of llmb, if llmb was not installed from a wheel.
_TREE = Path(llmb.__file__).resolve().parent.parent


@dataclass(frozen=True)
class InstalledPlugin:
    """A plugin by its entry point: where the plugin comes from, not whether the plugin works."""

    name: str
    module: str
    distribution: str
    version: str
    #: Why the plugin cannot be used, None for a usable plugin.
    fault: str | None = None

    @property
    def built_in(self) -> bool:
        """True for the plugins that come with llmb."""
        return self.name in BUILT_IN


def installed() -> tuple[InstalledPlugin, ...]:
    """Return every usable plugin: vendors' packages by name, then the built-in plugins.

    ``LLMB_LOAD_PLUGINS`` restricts the vendors' packages.

    A name that two packages claim is returned once, with a ``fault``.
    """
    found: dict[str, InstalledPlugin] = {}
    for plugin in filter(_is_wanted, _entry_points()):
        other = found.get(plugin.name)
        if plugin.built_in or (other and other.distribution != plugin.distribution):
            owner = "llmb itself" if plugin.built_in else other and other.distribution
            fault = f"claimed by {owner} and by {plugin.distribution}: uninstall one of them"
            found[plugin.name] = replace(plugin, fault=f"plugin name {plugin.name!r} is {fault}")
        else:
            found.setdefault(plugin.name, plugin)  # Python imports the first of two versions
    own = (InstalledPlugin(name, at, "llmb", llmb.__version__) for name, at in BUILT_IN.items())
    return (
        *sorted(found.values(), key=lambda plugin: plugin.name),
        *(plugin for plugin in own if plugin.name not in found),
    )


def find(name: str) -> InstalledPlugin:
    """Return plugin ``name``.

    Raises:
        UnavailableError: the plugin is not installed, or two packages claim the name.
    """
    plugins = installed()
    for plugin in plugins:
        if plugin.name == name and plugin.fault is not None:
            raise UnavailableError(plugin.fault)
        if plugin.name == name:
            return plugin
    if any(plugin.name == name for plugin in left_out()):
        raise UnavailableError(
            f"plugin {name!r} is installed, but {LOAD_PLUGINS}={environment()[LOAD_PLUGINS]!r} "
            "leaves it out"
        )
    known = [plugin.name for plugin in plugins]
    raise UnavailableError(
        f"no plugin {name!r} is installed (installed: {', '.join(known)}): {source_of(name)}"
        f"{did_you_mean(name, known)}"
    )


def source_of(name: str) -> str:
    """Return how to get plugin ``name``: a folder of llmb's source tree, or the vendor's page.

    Example: in a checkout, ``pip install ./plugins/llmb-acme`` if the folder exists. llmb does not
    know which names a package index has.
    """
    folder = f"plugins/llmb-{name}"
    if _NAME.fullmatch(name):
        for tree in (".", str(_TREE)):
            if os.path.isfile(f"{tree}/{folder}/pyproject.toml"):
                return f"pip install {quote(f'{tree}/{folder}')}"
    return "see the vendor's page; llmb's source tree has plugins in plugins/"


def entry_point(plugin: InstalledPlugin) -> EntryPoint:
    """Return the entry point of a vendor's ``plugin``, from the plugin's own distribution."""
    return next(
        point
        for distribution, point in _points(GROUP)
        if point.name == plugin.name and _fact(distribution, "Name") == plugin.distribution
    )


def _entry_points() -> Iterator[InstalledPlugin]:
    for distribution, point in _points(GROUP):
        module = point.value.partition(":")[0].strip()
        name, version = _fact(distribution, "Name"), _fact(distribution, "Version")
        yield InstalledPlugin(point.name, module, name, version)


def _points(group: str) -> Iterator[tuple[Distribution, EntryPoint]]:
    for distribution in distributions():
        try:
            points = tuple(distribution.entry_points)
        except Exception:  # skip a damaged package; the rest is still read
            continue
        yield from ((distribution, point) for point in points if point.group == group)


def _fact(distribution: Distribution, field: str) -> str:
    try:
        return distribution.metadata[field] or "unknown"
    except (KeyError, TypeError, OSError):  # no metadata: the error depends on the Python version
        return "unknown"


def wanted_names() -> frozenset[str] | None:
    """Return the names in ``LLMB_LOAD_PLUGINS``, None if the variable is not set."""
    given = environment().get(LOAD_PLUGINS)
    return None if given is None else frozenset(filter(None, map(str.strip, given.split(","))))


def left_out() -> tuple[InstalledPlugin, ...]:
    """Return the vendors' plugins that ``LLMB_LOAD_PLUGINS`` leaves out."""
    return tuple(plugin for plugin in _entry_points() if not _is_wanted(plugin))


def unknown_names() -> tuple[str, ...]:
    """Return the names in ``LLMB_LOAD_PLUGINS`` that are neither a plugin nor a distribution."""
    known = {*BUILT_IN, GROUP}
    for plugin in _entry_points():
        known |= {plugin.name, normalised(plugin.distribution)}
    given = wanted_names() or ()
    return tuple(sorted(n for n in given if n not in known and normalised(n) not in known))


def _is_wanted(plugin: InstalledPlugin) -> bool:
    wanted = wanted_names()
    if wanted is None or plugin.name in wanted:
        return True
    return normalised(plugin.distribution) in map(normalised, wanted)


def version_of(distribution: str) -> str | None:
    """Return the installed version, None if the distribution is not installed."""
    return _version(distribution, tuple(sys.path))


@cache
def _version(distribution: str, path: tuple[str, ...]) -> str | None:
    found = _by_name(path).get(normalised(distribution))
    return None if found is None else next(iter(_headers(found, "Version")), None)


def packages() -> Mapping[str, Distribution]:
    """Return all installed packages by normalised name."""
    return _by_name(tuple(sys.path))


@cache
def _by_name(path: tuple[str, ...]) -> Mapping[str, Distribution]:
    """Return installed packages by name; the first of two with one name, as Python imports it.

    A plugin cannot add a name to the cached result.
    """
    every = [*distributions()][::-1]
    return MappingProxyType({normalised(_name_of(found)): found for found in every})


def requirements(distribution: str) -> tuple[Requirement, ...]:
    """Return the requirements of an installed distribution; none if it is not installed."""
    return _requirements(distribution, tuple(sys.path))


@cache  # reading the requirements of all packages that torch may import takes half a second
def _requirements(distribution: str, path: tuple[str, ...]) -> tuple[Requirement, ...]:
    try:
        lines = requires(distribution) or ()
    except (PackageNotFoundError, ValueError):
        return ()
    found = []
    for line in lines:
        with suppress(InvalidRequirement):  # of a damaged package
            found.append(Requirement(line))
    return tuple(found)


def owners(top: str) -> tuple[str, ...]:
    """Return the distributions that own the folder or module ``top`` of a site folder."""
    return _owners(tuple(sys.path)).get(top, ())


@cache  # as importlib.metadata.packages_distributions of Python 3.12, in a tenth of its time
def _owners(path: tuple[str, ...]) -> Mapping[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {}
    for distribution in distributions():
        declared = (distribution.read_text("top_level.txt") or "").split()
        for top in declared or sorted(_tops(distribution.read_text("RECORD") or "")):
            found[top] = (*found.get(top, ()), _name_of(distribution))
    return MappingProxyType(found)


def _tops(record: str) -> set[str]:
    """Return the top-level folders and modules of the files in a package's ``record``."""
    parts = (row[0].partition("/") for row in csv.reader(record.splitlines()) if row)
    tops = {top if inner else getmodulename(top) or top for top, inner, _ in parts}
    return {top for top in tops if "." not in top and top != "__pycache__"}


def _name_of(distribution: Distribution) -> str:
    return next(iter(_headers(distribution, "Name")), None) or _fact(distribution, "Name")


def mentioned(distribution: str) -> tuple[str, ...]:
    """Return all names that a distribution's requirements mention, under any condition."""
    return _mentioned(distribution, tuple(sys.path))


@cache
def _mentioned(distribution: str, path: tuple[str, ...]) -> tuple[str, ...]:
    found = _by_name(path).get(normalised(distribution))
    if found is None:
        return ()
    if found.read_text("METADATA") is None:  # an older package layout, such as an egg
        return tuple(needed.name for needed in requirements(distribution))
    lines = _headers(found, "Requires-Dist")
    return tuple(name[0] for name in map(_NAME.match, lines) if name)


def _headers(distribution: Distribution, field: str) -> list[str]:
    """Return a package's metadata values of ``field``, without Python's slow parser of mails."""
    text = distribution.read_text("METADATA") or distribution.read_text("PKG-INFO") or ""
    return re.findall(rf"(?mi)^{field}:[ \t]*(.*?)[ \t]*$", text.partition("\n\n")[0])


def applies(requirement: Requirement, extra: str = "") -> bool:
    """Tell whether ``requirement`` applies on this machine, for ``extra`` or for no extra."""
    return requirement.marker is None or requirement.marker.evaluate({"extra": extra})


def normalised(distribution: str) -> str:
    """Return the normalised spelling of a distribution's name (PEP 503): "my-pkg" for "My_Pkg"."""
    return re.sub(r"[-_.]+", "-", distribution).lower()


class TorchExtension(Frozen):
    """Code that torch loads by itself when torch is imported, and the package with the code."""

    name: str
    target: str
    distribution: str
    version: str


def torch_entry_points() -> tuple[TorchExtension, ...]:
    """Return all code that torch loads by itself when torch is imported."""
    found: dict[tuple[str, str], TorchExtension] = {}
    for distribution, point in _points(TORCH_GROUP):
        name, version = _fact(distribution, "Name"), _fact(distribution, "Version")
        extension = TorchExtension(
            name=point.name, target=point.value, distribution=name, version=version
        )
        found.setdefault((name, point.name), extension)  # Python imports the first of two versions
    return tuple(found.values())


def torch_extensions() -> dict[str, str]:
    """Return name -> version of every package that torch loads by itself when torch is imported.

    The packages can change torch without any plugin, so the record names the packages.
    """
    return {extension.distribution: extension.version for extension in torch_entry_points()[::-1]}


@dataclass(frozen=True)
class SourceRoot:
    """A plugin's package, and the folder that the plugin's file names are relative to."""

    package: str
    folder: Path


def source_root(module: str) -> SourceRoot:
    """Return the root of the package that holds ``module``, without importing it.

    Raises:
        UnavailableError: the package was removed, or has no folder of its own.
    """
    if module in BUILT_IN.values():
        return SourceRoot(module.rpartition(".")[0], Path(llmb.__file__).resolve().parent.parent)
    package = module.partition(".")[0]
    spec = find_spec(package)
    if spec is None:
        raise UnavailableError(f"package {package!r} of the plugin is not there: reinstall it")
    if spec.origin is None:
        raise UnavailableError(
            f"package {package!r} of the plugin has no file: put an __init__.py into it"
        )
    origin = Path(spec.origin).resolve()
    inside = spec.submodule_search_locations is not None
    return SourceRoot(package, origin.parent.parent if inside else origin.parent)
