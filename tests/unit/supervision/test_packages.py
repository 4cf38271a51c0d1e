"""Installed packages by their metadata: what they require, and whether that is met."""

from __future__ import annotations

from pathlib import Path

import pytest
from packaging.specifiers import SpecifierSet

from llmb.plugin import discovery
from llmb.supervision import packages
from llmb.supervision.packages import is_met
from tests.unit.builders_runtime import install


def package(site: Path, name: str, *requirements: str, version: str = "1.0") -> None:
    info = install(site, name, {}, version=version)
    with (info / "METADATA").open("a") as metadata:
        metadata.writelines(f"Requires-Dist: {line}\n" for line in requirements)


@pytest.mark.parametrize(
    ("specifier", "installed", "expected"),
    [
        ("", "2.13.0+cpu", True),
        (">=2.8", "2.13.0+cpu", True),
        (">=2.14", "2.13.0+cpu", False),
        ("==2.9.1", "2.13.0", False),
        (">=2.8", "2.14.0a0+vendor", True),
        (">=2.15", "2.14.0a0+vendor", False),
        (">=2.8", "unknown", True),
    ],
)
def test_a_vendors_own_build_counts_as_what_it_is_and_an_odd_version_has_the_benefit_of_the_doubt(
    specifier: str, installed: str, expected: bool
) -> None:
    assert is_met(SpecifierSet(specifier), installed) is expected


def test_a_line_that_is_no_requirement_is_passed_over(site: Path) -> None:
    package(site, "llmb-odd", "acme>=3", "what >>> is this")
    assert [r.name for r in discovery.requirements("llmb-odd")] == ["acme"]


def test_a_requirement_that_is_surely_not_met_is_told_with_what_is_installed(site: Path) -> None:
    package(site, "acme-runtime", version="2.0")
    package(
        site,
        "llmb-odd",
        "acme-runtime>=3",
        "acme-missing==1",
        "acme-runtime>=1",
        'acme-elsewhere>=1; sys_platform == "plan9"',
    )
    old, gone = packages.unmet("llmb-odd")
    assert "llmb-odd needs acme-runtime>=3, installed is 2.0" in old
    assert "llmb-odd needs the package acme-missing==1, which is not installed" in gone
    assert "pip install 'acme-missing==1'" in gone


def test_a_package_that_is_not_installed_requires_nothing(site: Path) -> None:
    assert discovery.requirements("llmb-nowhere") == ()
    assert packages.unmet("llmb-nowhere") == ()
    assert discovery.version_of("llmb-nowhere") is None


def test_versions_are_those_of_packages_and_what_they_require_where_installed(site: Path) -> None:
    package(site, "acme-runtime", version="2.0")
    package(site, "acme-extra", version="3.0")
    needed = ("acme_runtime", 'acme-extra; extra == "x"', "acme-gone")
    package(site, "llmb-odd", *needed, version="0.5")
    found = packages.versions_around(["llmb-odd", "llmb-nowhere"])
    assert found == {"acme-extra": "3.0", "acme_runtime": "2.0", "llmb-odd": "0.5"}


def test_of_llmb_itself_only_what_its_users_need_is_listed() -> None:
    found = packages.versions_around(["llmb"])
    assert {"llmb", "torch", "pluggy", "pydantic"} <= set(found)
    assert not {"pytest", "ruff", "mypy"} & set(found)
