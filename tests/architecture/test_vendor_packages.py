"""The packages under plugins/ come in through the public door, and not through one another."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
PACKAGES = sorted((ROOT / "plugins").glob("llmb-*"))
OTHERS = [ROOT / "tests/plugins/llmb-example", ROOT / "tests/plugins/llmb-fakedev"]
DOOR = re.compile(r"llmb\.(plugin|config|errors)(\.|$)")

every = pytest.mark.parametrize("package", [*PACKAGES, *OTHERS], ids=lambda path: path.name)


def sources(package: Path) -> list[Path]:
    return sorted((package / package.name.replace("-", "_")).rglob("*.py"))


def imported(file: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            # `from llmb import plugin` names a room as much as `import llmb.plugin` does
            names = (f"llmb.{alias.name}" for alias in node.names)
            yield from names if node.module == "llmb" else [node.module]
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def test_the_four_vendors_packages_are_there() -> None:
    assert [path.name for path in PACKAGES] == ["llmb-cuda", "llmb-rocm", "llmb-xla", "llmb-xpu"]


@every
def test_a_package_imports_of_llmb_only_the_public_door(package: Path) -> None:
    names = {name for file in sources(package) for name in imported(file)}
    of_llmb = {name for name in names if name.partition(".")[0] == "llmb"}
    assert of_llmb, "no package does without llmb"
    assert [name for name in sorted(of_llmb) if not DOOR.match(name)] == []


@every
def test_no_package_imports_another(package: Path) -> None:
    own = package.name.replace("-", "_")
    tops = {name.partition(".")[0] for file in sources(package) for name in imported(file)}
    assert {top for top in tops if top.startswith("llmb_")} <= {own}


@every
def test_the_entry_point_has_the_packages_own_name(package: Path) -> None:
    name = package.name.removeprefix("llmb-")
    text = (package / "pyproject.toml").read_text()
    assert f'[project.entry-points.llmb]\n{name} = "llmb_{name}.plugin"\n' in text
    assert f'name = "{package.name}"' in text
    assert 'requires-python = ">=3.10"' in text


@pytest.mark.parametrize("package", PACKAGES, ids=lambda path: path.name)
def test_a_vendors_package_has_a_readme_and_tests(package: Path) -> None:
    assert (
        f"llmb run --plugin {package.name.removeprefix('llmb-')}"
        in (package / "README.md").read_text()
    )
    assert list((package / "tests").glob("test_*.py"))
