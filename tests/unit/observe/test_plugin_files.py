"""Which files of a plugin this process has loaded: sources by digest, compiled ones as closed."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import marshal
import math
from collections.abc import Iterator
from pathlib import Path
from types import CodeType

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
    assert list(executed_code.other_than_own(site / "acme_llmb")) == [hooks]
    assert list(executed_code.other_than_own(site / "acme_llmb" / "kernels")) == []


NANS = """\
NAN, PAIR, COMPLEX = 1e999 - 1e999, (1, 1e999 * 0), 1e999 * 0j
def f(x):
    return x in {1e999 * 0, -(1e999 * 0), (2, 1e999 * 0)}
"""


def test_a_constant_that_is_no_number_was_run_as_shown(site: Path) -> None:
    executed_code.listen()
    install(site, "acme", {"acme": "acme_llmb"}, {"acme_llmb/__init__.py": NANS})
    importlib.import_module("acme_llmb")
    assert plugin_files.loaded_otherwise("acme_llmb") == ()


def code_of(text: str) -> CodeType:
    return compile(text, "acme.py", "exec")


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("x = 1e999 - 1e999", "x = -(1e999 - 1e999)"),
        ("x = 1e999 - 1e999", "x = 1e999"),
        ("x = 1e999 - 1e999, 0.0", "x = 1e999 - 1e999, -0.0"),
        ("x = 1e999 - 1e999, 1", "x = 1e999 - 1e999, 1.0"),
        ("x = 1e999 - 1e999, 1", "x = 1e999 - 1e999, True"),
        ("x = 1e999 - 1e999, 0j", "x = 1e999 - 1e999, -0j"),
        ("x in {1e999 * 0, 2}", "x in {1e999 * 0, 2, 1e999 * 0}"),
        ("x in {1e999 * 0, 2}", "x in {1e999 * 0, 2.0}"),
        ("def f(): return 1e999 * 0, 1", "def f(): return 1e999 * 0, 2"),
        ("x = 1e999 * 0", "y = 1e999 * 0"),
    ],
)
def test_other_code_is_other_beside_a_constant_that_is_no_number(one: str, other: str) -> None:
    assert executed_code.is_same(code_of(one), code_of(one))
    assert not executed_code.is_same(code_of(one), code_of(other))


def test_a_constant_that_only_shows_the_right_items_is_other_code() -> None:
    class Shown(tuple[float, ...]):
        def __iter__(self) -> Iterator[float]:
            return iter((math.nan, 1.0))

    right = code_of("x = 1e999 * 0, 1.0")
    false = right.replace(co_consts=(Shown((2.0, 3.0)), *right.co_consts[1:]))
    assert not executed_code.is_same(false, right)


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
