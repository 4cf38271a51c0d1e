"""Which files of a plugin this process has loaded: sources by digest, compiled ones as closed."""

from __future__ import annotations

import hashlib
import importlib
import sys
from pathlib import Path
from types import ModuleType

import pytest

from llmb.observe import plugin_files
from tests.unit.builders_runtime import install

FILES = {
    "acme_llmb/__init__.py": "ONE = 1\n",
    "acme_llmb/hooks.py": "from acme_llmb.kernels import fused\n",
    "acme_llmb/kernels/__init__.py": "",
    "acme_llmb/kernels/fused.py": "FAST = True\n",
    "acme_llmb/unused.py": "raise SystemExit\n",
    "acme_llmb_tools.py": "",
}


@pytest.fixture
def acme(site: Path) -> Path:
    install(site, "acme", {"acme": "acme_llmb.hooks"}, FILES, "2.5")
    importlib.import_module("acme_llmb.hooks")
    importlib.import_module("acme_llmb_tools")
    return site


def test_loaded_sources_are_those_of_the_package_that_were_imported_and_no_others(
    acme: Path,
) -> None:
    found = {file.path: file for file in plugin_files.loaded_sources("acme_llmb.hooks")}
    assert sorted(found) == [
        "acme_llmb/__init__.py",
        "acme_llmb/hooks.py",
        "acme_llmb/kernels/__init__.py",
        "acme_llmb/kernels/fused.py",
    ]
    data = FILES["acme_llmb/kernels/fused.py"].encode()
    fused = found["acme_llmb/kernels/fused.py"]
    assert (fused.sha256, fused.bytes) == (hashlib.sha256(data).hexdigest(), len(data))


def test_a_plugin_of_one_module_is_that_file(acme: Path) -> None:
    (found,) = plugin_files.loaded_sources("acme_llmb_tools")
    assert found.path == "acme_llmb_tools.py"


def test_the_built_in_plugin_is_shown_without_the_rest_of_llmb() -> None:
    importlib.import_module("llmb.plugin.builtin.cpu")
    found = {file.path for file in plugin_files.loaded_sources("llmb.plugin.builtin.cpu")}
    assert {"llmb/plugin/builtin/cpu.py", "llmb/plugin/builtin/host.py"} <= found
    assert all(path.startswith("llmb/plugin/builtin/") for path in found)


def test_a_plugin_without_compiled_modules_has_no_closed_component(acme: Path) -> None:
    assert plugin_files.closed_components("acme_llmb.hooks", "acme") == ()


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
    (found,) = plugin_files.closed_components("acme_llmb.hooks", "acme")
    assert (found.name, found.version) == ("acme_llmb/native.so", "2.5")
    assert (found.sha256, found.bytes) == (hashlib.sha256(data).hexdigest(), len(data))
    assert found.where_to_get == "pip install acme"
    assert found.licence == "not stated"
    sources = plugin_files.loaded_sources("acme_llmb.hooks")
    assert "acme_llmb/native.so" not in {file.path for file in sources}


@pytest.mark.parametrize(
    ("extra", "where", "licence"),
    [
        ("Home-page: https://acme.example\nLicense: Acme EULA\n", "https://acme.example", "Acme"),
        ("License-Expression: Apache-2.0\nLicense: old\nHome-page: u\n", "u", "Apache-2.0"),
    ],
)
def test_a_closed_components_home_and_licence_are_those_of_its_package(
    acme: Path, monkeypatch: pytest.MonkeyPatch, extra: str, where: str, licence: str
) -> None:
    load_compiled(acme, monkeypatch)
    metadata = acme / "acme-2.5.dist-info" / "METADATA"
    metadata.write_text(metadata.read_text() + extra)
    (found,) = plugin_files.closed_components("acme_llmb.hooks", "acme")
    assert found.where_to_get == where
    assert found.licence.startswith(licence)
