"""Which files of a plugin this process has loaded: sources by digest, compiled ones as closed."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import marshal
from pathlib import Path

import pytest

from llmb.observe import executed_code, plugin_files
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
    executed_code.listen()
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


def test_what_was_imported_from_its_file_was_run_as_shown(acme: Path) -> None:
    assert plugin_files.loaded_otherwise("acme_llmb.hooks") == ()


def test_a_file_exchanged_once_it_was_loaded_is_named(acme: Path) -> None:
    acme.joinpath("acme_llmb/hooks.py").write_text("ONE = 1\n")
    assert plugin_files.loaded_otherwise("acme_llmb.hooks") == ("acme_llmb/hooks.py",)


def test_byte_code_of_another_text_is_found_out(site: Path) -> None:
    executed_code.listen()
    install(site, "acme", {"acme": "acme_llmb.hooks"}, FILES, "2.5")
    hooks = site / "acme_llmb/hooks.py"
    cached = Path(importlib.util.cache_from_source(str(hooks)))
    cached.parent.mkdir(exist_ok=True)
    head = importlib.util.MAGIC_NUMBER + (1).to_bytes(4, "little")  # PEP 552: never looked at again
    head += importlib.util.source_hash(hooks.read_bytes())
    cached.write_bytes(head + marshal.dumps(compile("HIDDEN = 1\n", str(hooks), "exec")))
    assert importlib.import_module("acme_llmb.hooks").HIDDEN == 1
    assert plugin_files.loaded_otherwise("acme_llmb.hooks") == ("acme_llmb/hooks.py",)


def test_code_that_was_run_before_anybody_listened_is_not_vouched_for(acme: Path) -> None:
    never = [code for code in executed_code.listen()() if "acme_llmb" not in code.co_filename]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(executed_code, "listen", lambda: lambda: tuple(never))
        assert "acme_llmb/hooks.py" in plugin_files.loaded_otherwise("acme_llmb.hooks")


def test_files_whose_code_is_another_are_named_in_their_order(
    acme: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executed_code, "other_than_shown", lambda files: files)
    found = plugin_files.loaded_otherwise("acme_llmb.hooks")
    assert list(found) == sorted(found)
    assert len(found) > 2
