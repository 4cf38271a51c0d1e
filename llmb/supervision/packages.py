"""Installed packages by their metadata alone: versions, and what they ask of each other."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, requires, version

from llmb.plugin.discovery import normalised

_REQUIREMENT = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)\s*(?:\[[^\]]*\])?\s*\(?([^;()@]*)")
_CLAUSE = re.compile(r"(==|!=|~=|>=|<=|>|<)\s*v?([0-9]+(?:\.[0-9]+)*)(\.\*)?")
#: A release, perhaps of a vendor's own build (``2.13.0+vendor``); pre-releases are not compared.
_RELEASE = re.compile(r"v?([0-9]+(?:\.[0-9]+)*)(?:\+.*)?")


@dataclass(frozen=True)
class Requirement:
    """One package that a distribution requires."""

    name: str
    #: Such as ``>=2.8,<3``; empty if any version will do.
    specifier: str
    #: Only on some platforms, or for an extra: it may not apply here.
    conditional: bool


def version_of(distribution: str) -> str | None:
    """Return the installed version, None if there is none."""
    try:
        return version(distribution)
    except (PackageNotFoundError, KeyError, TypeError, ValueError):
        return None


def requirements_of(distribution: str) -> tuple[Requirement, ...]:
    """Return what an installed distribution requires, nothing for one that is not installed."""
    try:
        lines = requires(distribution) or []
    except (PackageNotFoundError, ValueError):
        return ()
    return tuple(
        Requirement(found[1], found[2].strip(), conditional=";" in line)
        for line in lines
        if (found := _REQUIREMENT.match(line))
    )


def is_met(specifier: str, installed: str) -> bool | None:
    """Tell whether version ``installed`` is within ``specifier``, None where that is not plain."""
    release = _RELEASE.fullmatch(installed)
    if release is None:
        return None
    met = True
    for clause in filter(None, map(str.strip, specifier.split(","))):
        found = _CLAUSE.fullmatch(clause)
        if found is None:
            return None
        met = met and _holds(_numbers(release[1]), found[1], _numbers(found[2]), bool(found[3]))
    return met


def _numbers(release: str) -> tuple[int, ...]:
    return tuple(map(int, release.split(".")))


def _holds(have: tuple[int, ...], operator: str, want: tuple[int, ...], any_below: bool) -> bool:
    if operator == "~=":
        any_below, lowest = True, want
        want = want[:-1]
    width = len(want) if any_below else max(len(have), len(want))
    cut = (*have, *[0] * width)[:width]
    full = (*want, *[0] * width)[:width]
    if operator == "~=":
        return cut == full and (*have, *[0] * len(lowest))[: max(len(have), len(lowest))] >= lowest
    return {
        "==": cut == full,
        "!=": cut != full,
        ">=": cut >= full,
        "<=": cut <= full,
        ">": cut > full,
        "<": cut < full,
    }[operator]


def versions_around(distributions: Iterable[str]) -> dict[str, str]:
    """Return name -> version of ``distributions`` and of what they require, where installed.

    Of llmb itself what its users need; of all others what they need for extras, too.
    """
    names: dict[str, str] = {}
    for distribution in distributions:
        names.setdefault(normalised(distribution), distribution)
        for required in requirements_of(distribution):
            if not (required.conditional and distribution == "llmb"):
                names.setdefault(normalised(required.name), required.name)
    found = {name: version_of(name) for name in names.values()}
    return {name: has for name, has in sorted(found.items(), key=_by_name) if has is not None}


def _by_name(item: tuple[str, str | None]) -> str:
    return item[0].lower()


def unmet(distribution: str) -> tuple[str, ...]:
    """Return a sentence for each requirement of ``distribution`` that is surely not met here."""
    found = []
    for required in requirements_of(distribution):
        if required.conditional:
            continue
        has = version_of(required.name)
        wanted = f"{required.name}{required.specifier}"
        if has is None:
            found.append(
                f"{distribution} needs the package {wanted}, which is not installed: "
                f"pip install '{wanted}'"
            )
        elif is_met(required.specifier, has) is False:
            found.append(
                f"{distribution} needs {wanted}, installed is {has}: pip install '{wanted}'"
            )
    return tuple(found)
