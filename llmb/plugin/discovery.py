"""Which plugins are installed, read from package metadata without importing any of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import distributions
from importlib.util import find_spec
from pathlib import Path

import llmb
from llmb.errors import UnavailableError

GROUP = "llmb"
#: Name -> module of the plugins that come with llmb.
BUILT_IN = {
    "cpu": "llmb.plugin.builtin.cpu",
    "generic": "llmb.plugin.builtin.generic",
}


@dataclass(frozen=True)
class InstalledPlugin:
    """A plugin by its entry point: where it comes from, not whether it works."""

    name: str
    module: str
    distribution: str
    version: str

    @property
    def built_in(self) -> bool:
        """True for the plugins that come with llmb."""
        return self.name in BUILT_IN


def installed() -> tuple[InstalledPlugin, ...]:
    """Return every plugin: vendors' packages by name, then the built-in ones.

    Raises:
        UnavailableError: two packages claim one name.
    """
    found: dict[str, InstalledPlugin] = {}
    for plugin in _entry_points():
        other = found.get(plugin.name)
        taken = "llmb itself" if plugin.built_in else other and other.distribution
        if taken and not (other and other.distribution == plugin.distribution):
            raise UnavailableError(
                f"plugin name {plugin.name!r} is claimed by {taken} and by "
                f"{plugin.distribution}: uninstall one of them"
            )
        found[plugin.name] = plugin
    own = [
        InstalledPlugin(name, module, "llmb", llmb.__version__) for name, module in BUILT_IN.items()
    ]
    return (*sorted(found.values(), key=lambda plugin: plugin.name), *own)


def find(name: str) -> InstalledPlugin:
    """Return plugin ``name``.

    Raises:
        UnavailableError: it is not installed; the message says what is.
    """
    plugins = installed()
    for plugin in plugins:
        if plugin.name == name:
            return plugin
    names = ", ".join(plugin.name for plugin in plugins)
    raise UnavailableError(
        f"no plugin {name!r} is installed (installed: {names}): pip install llmb-{name}"
    )


def _entry_points() -> Iterator[InstalledPlugin]:
    for distribution in distributions():
        for point in distribution.entry_points:
            if point.group == GROUP:
                name = distribution.metadata["Name"]
                yield InstalledPlugin(point.name, point.module, name, distribution.version)


@dataclass(frozen=True)
class SourceRoot:
    """Where a plugin's sources lie: its package, and the folder its file names are relative to."""

    package: str
    folder: Path


def source_root(module: str) -> SourceRoot:
    """Return the root of the package that holds ``module``, without importing it.

    Raises:
        UnavailableError: the package is not there any more.
    """
    if module in BUILT_IN.values():
        return SourceRoot(module.rpartition(".")[0], Path(llmb.__file__).resolve().parent.parent)
    package = module.partition(".")[0]
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        raise UnavailableError(f"package {package!r} of the plugin has no file: reinstall it")
    origin = Path(spec.origin).resolve()
    inside = spec.submodule_search_locations is not None
    return SourceRoot(package, origin.parent.parent if inside else origin.parent)
