"""Native libraries loaded for a plugin: shipped, required and declared ones are components."""

from __future__ import annotations

import ctypes
import hashlib
import importlib
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType

import pytest

from llmb.errors import RunFailedError, UnavailableError
from llmb.observe import closed_components as module
from llmb.observe.closed_components import closed_components
from llmb.plugin import NativeLibrary
from tests import needs
from tests.unit.builders_runtime import install

FILES = {"acme_llmb/__init__.py": "", "acme_llmb/hooks.py": "import acme_llmb\n"}


@pytest.fixture
def acme(site: Path) -> Path:
    install(site, "acme", {"acme": "acme_llmb.hooks"}, FILES, "2.5")
    importlib.import_module("acme_llmb.hooks")
    return site


def test_a_plugin_without_compiled_modules_has_no_closed_component(acme: Path) -> None:
    assert closed_components("acme_llmb.hooks", "acme", ()) == ()


def load_compiled(site: Path, monkeypatch: pytest.MonkeyPatch) -> bytes:
    data = b"\x7fELF fast"
    (site / "acme_llmb" / "native.so").write_bytes(data)
    module = ModuleType("acme_llmb.native")
    module.__file__ = str(site / "acme_llmb" / "native.so")
    monkeypatch.setitem(sys.modules, "acme_llmb.native", module)
    return data


def test_a_compiled_module_is_a_closed_component_with_digest_and_where_to_get_it(
    acme: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = load_compiled(acme, monkeypatch)
    (found,) = closed_components("acme_llmb.hooks", "acme", ())
    assert (found.name, found.version) == ("acme_llmb/native.so", "2.5")
    assert (found.sha256, found.bytes) == (hashlib.sha256(data).hexdigest(), len(data))
    assert found.where_to_get == "pip install acme"
    assert found.licence == "not stated"


@pytest.mark.parametrize(
    ("extra", "where", "licence"),
    [
        (
            "Home-page: https://acme.example\nLicense: Acme EULA\n",
            "https://acme.example",
            "Acme EULA",
        ),
        (
            "License: BSD 3-Clause\n        Redistribution and use\nHome-page: u\n",
            "u",
            "BSD 3-Clause",
        ),
        ("License-Expression: Apache-2.0\nLicense: old\nHome-page: u\n", "u", "Apache-2.0"),
    ],
)
def test_a_closed_components_home_and_licence_are_those_of_its_package(
    acme: Path, monkeypatch: pytest.MonkeyPatch, extra: str, where: str, licence: str
) -> None:
    load_compiled(acme, monkeypatch)
    metadata = acme / "acme-2.5.dist-info" / "METADATA"
    metadata.write_text(metadata.read_text() + extra)
    (found,) = closed_components("acme_llmb.hooks", "acme", ())
    assert found.where_to_get == where
    assert found.licence == licence


def compiled(target: Path, number: int) -> Path:
    """Make a real shared library at ``target``."""
    compiler = needs.compiler("c")
    target.parent.mkdir(parents=True, exist_ok=True)
    source = target.with_suffix(".c")
    source.write_text(f"int answer(void) {{ return {number}; }}\n")
    subprocess.run([compiler, "-shared", "-fPIC", source, "-o", target], check=True)
    return target.resolve()


def test_a_library_shipped_in_the_package_counts_once_it_is_loaded_by_whatever_means(
    acme: Path,
) -> None:
    library = compiled(acme / "acme_llmb" / "lib" / "fast.so", 1)
    assert closed_components("acme_llmb.hooks", "acme", ()) == ()
    ctypes.CDLL(str(library))
    (found,) = closed_components("acme_llmb.hooks", "acme", ())
    assert found.name == "acme_llmb/lib/fast.so"
    assert found.sha256 == hashlib.sha256(library.read_bytes()).hexdigest()


def test_a_library_behind_a_link_counts_if_the_plugins_package_records_the_link(
    acme: Path, tmp_path: Path
) -> None:
    library = compiled(tmp_path / "cache" / "linked.so", 5)
    (acme / "acme_llmb" / "linked.so").symlink_to(library)
    (acme / "acme-2.5.dist-info" / "RECORD").write_text("acme_llmb/linked.so,,\n")
    ctypes.CDLL(str(acme / "acme_llmb" / "linked.so"))
    (found,) = closed_components("acme_llmb.hooks", "acme", ())
    assert found.name == "acme_llmb/linked.so"


def test_a_library_counts_whatever_its_file_is_called(acme: Path) -> None:
    library = compiled(acme / "acme_llmb" / "tables.dat", 3)
    ctypes.CDLL(str(library))
    (found,) = closed_components("acme_llmb.hooks", "acme", ())
    assert found.name == "acme_llmb/tables.dat"


def test_a_library_that_is_deleted_once_it_is_loaded_is_an_error_that_names_it(acme: Path) -> None:
    library = compiled(acme / "acme_llmb" / "fleeting.so", 4)
    ctypes.CDLL(str(library))
    library.unlink()
    with pytest.raises(RunFailedError, match=r"acme_llmb/fleeting\.so.* cannot be read any more"):
        closed_components("acme_llmb.hooks", "acme", ())


def test_a_loaded_library_of_a_package_the_plugin_requires_is_named_with_that_packages_facts(
    site: Path,
) -> None:
    info = install(site, "acme", {"acme": "acme_llmb.hooks"}, FILES, "2.5")
    metadata = info / "METADATA"
    metadata.write_text(metadata.read_text() + "Requires-Dist: Acme_Kernels>=1 ; extra == 'x'\n")
    kernels = install(site, "acme-kernels", {}, {"acme_kernels/__init__.py": ""}, "9.1")
    facts = "License: Acme EULA\nHome-page: https://acme.example\n"
    (kernels / "METADATA").write_text((kernels / "METADATA").read_text() + facts)
    (kernels / "RECORD").write_text("acme_kernels/__init__.py,,\nacme_kernels/k.so.3,,\n")
    importlib.import_module("acme_llmb.hooks")
    ctypes.CDLL(str(compiled(site / "acme_kernels" / "k.so.3", 2)))
    (found,) = closed_components("acme_llmb.hooks", "acme", ())
    assert (found.name, found.version) == ("acme_kernels/k.so.3", "9.1")
    assert (found.licence, found.where_to_get) == ("Acme EULA", "https://acme.example")


def test_what_torch_and_llmb_need_themselves_is_no_component_of_a_plugin_that_needs_it_too(
    acme: Path,
) -> None:
    metadata = acme / "acme-2.5.dist-info" / "METADATA"
    needs = "Requires-Dist: torch\nRequires-Dist: numpy\nRequires-Dist: pydantic\n"
    metadata.write_text(metadata.read_text() + needs)
    importlib.import_module("torch")
    importlib.import_module("numpy")
    assert any("torch" in str(path) for path in module._mapped())
    assert closed_components("acme_llmb.hooks", "acme", ()) == ()


def test_a_declared_library_is_taken_with_its_digest_and_the_plugins_own_words(
    acme: Path, tmp_path: Path
) -> None:
    library = tmp_path / "libacme.so.2"
    library.write_bytes(b"closed")
    declared = NativeLibrary(
        path=str(library), version="2.0", licence="Acme EULA", where_to_get="ask Acme"
    )
    (found,) = closed_components("acme_llmb.hooks", "acme", [declared])
    assert (found.name, found.version, found.bytes) == ("libacme.so.2", "2.0", 6)
    assert found.sha256 == hashlib.sha256(b"closed").hexdigest()
    assert (found.licence, found.where_to_get) == ("Acme EULA", "ask Acme")


def test_a_declared_library_that_is_not_there_is_an_error_that_names_it(acme: Path) -> None:
    declared = NativeLibrary(path="/nowhere/lib.so", licence="x", where_to_get="y")
    with pytest.raises(UnavailableError, match=r"'/nowhere/lib\.so': No such file"):
        closed_components("acme_llmb.hooks", "acme", [declared])


@pytest.mark.parametrize(
    ("plugin", "extensions", "asked"),
    [
        ("llmb", {}, set()),
        ("llmb-acme", {}, {"llmb-acme"}),
        ("llmb-acme", {"Torch_Warp": "1"}, {"llmb-acme", "torch-warp"}),
        ("llmb-acme", {"torch": "2"}, {"llmb-acme"}),
    ],
)
def test_what_llmb_and_torch_could_bring_with_extras_is_not_the_plugins(
    monkeypatch: pytest.MonkeyPatch, plugin: str, extensions: dict[str, str], asked: set[str]
) -> None:
    seen: list[set[str]] = []

    def closure(names: Iterable[str], *, extras: bool = False) -> set[str]:
        if extras:
            seen.append(set(names))
        return set() if extras else {"torch", "llmb"}

    monkeypatch.setattr(module, "_closure", closure)
    monkeypatch.setattr(module, "_shipped", lambda *_: iter(()))
    monkeypatch.setattr(module, "torch_extensions", lambda: extensions)
    assert module.closed_components("a", plugin, ()) == ()
    assert seen == [asked]
