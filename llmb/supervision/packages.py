"""Installed packages, read from metadata only: versions and requirements."""

from __future__ import annotations

from collections.abc import Iterable

from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

from llmb.plugin.discovery import applies, normalised, requirements, version_of


def is_met(specifier: SpecifierSet, installed: str) -> bool:
    """Tell whether version ``installed`` may be within ``specifier``.

    An installed pre-release counts, because a vendor's build is often a pre-release. A version
    outside the rules of PEP 440 counts as met. Example: 2.1.0a0 meets ``>=2.0``.
    """
    try:
        return specifier.contains(Version(installed), prereleases=True)
    except InvalidVersion:
        return True


def versions_around(distributions: Iterable[str]) -> dict[str, str]:
    """Return name -> version of installed ``distributions`` and of installed requirements.

    For llmb, only requirements without extras count. For a different distribution, such as a
    vendor's plugin, requirements of extras count, too.
    """
    names: dict[str, str] = {}
    for distribution in distributions:
        names.setdefault(normalised(distribution), distribution)
        for required in requirements(distribution):
            if distribution != "llmb" or applies(required):
                names.setdefault(normalised(required.name), required.name)
    found = {name: version_of(name) for name in names.values()}
    return {name: has for name, has in sorted(found.items(), key=_by_name) if has is not None}


def _by_name(item: tuple[str, str | None]) -> str:
    return item[0].lower()


def unmet(distribution: str) -> tuple[str, ...]:
    """Return a sentence for each requirement of ``distribution`` that is certainly not met."""
    found = []
    for required in filter(applies, requirements(distribution)):
        has = version_of(required.name)
        wanted = f"{required.name}{required.specifier}"
        if has is None:
            found.append(
                f"{distribution} needs the package {wanted}, which is not installed: "
                f"pip install '{wanted}'"
            )
        elif not is_met(required.specifier, has):
            found.append(
                f"{distribution} needs {wanted}, installed is {has}: pip install '{wanted}'"
            )
    return tuple(found)
