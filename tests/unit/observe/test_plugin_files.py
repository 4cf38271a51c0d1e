"""Which files of a plugin this process has loaded: sources by digest, compiled ones as closed."""

from __future__ import annotations

import hashlib
import importlib
from pathlib import Path

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
