"""What every Python process runs when it starts, because a plugin's package brought the file."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable
from importlib.metadata import PathDistribution
from pathlib import Path

import pytest

from llmb.observe import recorded_files
from llmb.observe.origins import Origins
from llmb.observe.start_files import start_files
from tests.unit.builders_runtime import install

Found = set[tuple[str, str, str | None]]
Look = Callable[[], Found]
NAME = "__editable___llmb_acme_1_0_finder"
IN_PLACE = f"import {NAME}; {NAME}.install()\n"
SETUPTOOLS = "import os; __import__('_distutils_hack').add_shim();"


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder of packages, with the plugin llmb-acme, which needs acme-runtime."""
    site = tmp_path / "site"
    info = install(site, "llmb-acme", {"acme": "acme_llmb"}, {"acme_llmb/__init__.py": ""})
    with (info / "METADATA").open("a") as metadata:
        metadata.write(
            "Requires-Dist: acme-runtime\nRequires-Dist: setuptools\nRequires-Dist: pydantic\n"
        )
    (info / "top_level.txt").write_text("acme_llmb\n")
    install(site, "acme-runtime", {})
    with (install(site, "llmb", {}) / "METADATA").open("a") as metadata:
        metadata.write("Requires-Dist: pydantic\n")
    install(site, "setuptools", {})
    install(site, "bystander", {})
    own = [place for place in sys.path if "site-packages" not in place]
    monkeypatch.setattr(sys, "path", [str(site), *own])
    importlib.invalidate_caches()
    return site


@pytest.fixture
def look(site: Path, monkeypatch: pytest.MonkeyPatch) -> Look:
    def look() -> Found:
        folders = (*site.glob("*.dist-info"),)
        there = {f.name.partition("-")[0].replace("_", "-"): PathDistribution(f) for f in folders}
        monkeypatch.setattr(recorded_files, "_AT_FIRST", there)
        origins = Origins("acme_llmb", "llmb-acme")
        return {(one.name, one.origin, one.distribution) for one in start_files(origins)}

    return look


def add(site: Path, owner: str, name: str, text: str) -> None:
    """Let the package ``owner`` list the file ``name``."""
    (site / name).parent.mkdir(parents=True, exist_ok=True)
    (site / name).write_text(text)
    with (site / f"{owner.replace('-', '_')}-1.0.dist-info" / "RECORD").open("a") as record:
        record.write(f"{name},sha256=x,\n")


def edit(site: Path, owner: str) -> None:
    """Let the package ``owner`` be installed in place."""
    url = {"url": site.as_uri() + "/src", "dir_info": {"editable": True}}
    info = site / f"{owner.replace('-', '_')}-1.0.dist-info"
    (info / "direct_url.json").write_text(json.dumps(url))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("sitecustomize.py", ""),
        ("usercustomize.py", ""),
        ("sitecustomize/__init__.py", ""),
        ("acme.pth", "import acme_llmb\n"),
        ("acme.pth", "src\nimport\tos; print(1)"),
        ("__editable__.llmb_acme-1.0.pth", IN_PLACE),
        ("distutils-precedence.pth", SETUPTOOLS),
    ],
)
@pytest.mark.parametrize(
    ("owner", "origin"), [("llmb-acme", "plugin"), ("acme-runtime", "library")]
)
def test_a_file_that_python_runs_is_found(
    site: Path, look: Look, name: str, text: str, owner: str, origin: str
) -> None:
    add(site, owner, name, text)
    assert look() == {(name, origin, owner)}


@pytest.mark.parametrize(
    ("owner", "name", "text"),
    [
        ("llmb-acme", "acme.pth", "# import os\nsrc\nimports\n"),
        ("llmb-acme", "acme_llmb/acme.pth", "import os\n"),
        ("llmb-acme", "acme_llmb/sitecustomize.py", ""),
        ("setuptools", "distutils-precedence.pth", SETUPTOOLS),
        ("bystander", "bystander.pth", "import os\n"),
        ("bystander", "sitecustomize.py", ""),
    ],
)
def test_any_other_file_is_no_such_file(
    site: Path, look: Look, owner: str, name: str, text: str
) -> None:
    add(site, owner, name, text)
    assert look() == set()


def test_a_file_of_a_package_that_llmb_needs_is_not_the_plugins(site: Path, look: Look) -> None:
    install(site, "pydantic", {})
    add(site, "pydantic", "pydantic.pth", "import os\n")
    assert look() == set()


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (IN_PLACE, False),
        (IN_PLACE + "import os\n", True),
        (IN_PLACE.strip() + "; import os\n", True),
        (f"import {NAME}; other.install()\n", True),
    ],
)
def test_a_plugin_installed_in_place_has_the_line_of_setuptools(
    site: Path, look: Look, text: str, *, found: bool
) -> None:
    edit(site, "llmb-acme")
    add(site, "llmb-acme", "__editable__.llmb_acme-1.0.pth", text)
    assert bool(look()) is found


def test_a_file_that_has_removed_itself_is_found(site: Path, look: Look) -> None:
    add(site, "llmb-acme", "acme.pth", "")
    (site / "acme.pth").unlink()
    assert look() == {("acme.pth", "plugin", "llmb-acme")}


def test_a_file_that_no_package_lists_is_the_plugins_if_it_imports_the_plugin(
    site: Path, look: Look
) -> None:
    (site / "other.pth").write_text("import os; import acme_llmb.early\n")
    (site / "more.pth").write_text("import os\n")
    assert look() == {("other.pth", "plugin", "llmb-acme")}


def test_a_package_without_a_list_has_the_modules_beside_it(site: Path, look: Look) -> None:
    (site / "sitecustomize.py").write_text("")
    assert ("sitecustomize.py", "plugin", "llmb-acme") in look()


def test_a_module_in_a_folder_that_the_plugin_adds_is_the_plugins(
    site: Path, look: Look, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(site, "llmb-acme", "acme.pth", "acme_llmb/early\n")
    add(site, "llmb-acme", "acme_llmb/early/sitecustomize.py", "")
    monkeypatch.setattr(sys, "path", [str(site / "acme_llmb" / "early"), *sys.path])
    assert [found[1:] for found in look()] == [("plugin", "llmb-acme")]
