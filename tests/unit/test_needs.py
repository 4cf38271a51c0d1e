"""What a test needs and does not find: a skip with a reason, and with CI=true a failure."""

from __future__ import annotations

import importlib.util
import json
import shutil

import pytest

from tests import needs

ASKED = {
    "pyarrow": (lambda: needs.package("pyarrow"), lambda: needs.has_package("pyarrow")),
    "zip": (lambda: needs.program("zip"), lambda: needs.has_program("zip")),
    "compiler": (needs.compiler, needs.has_compiler),
    "chromium": (needs.chromium, lambda: needs.has_program("chromium")),
}
every_need = pytest.mark.parametrize("name", ASKED)


@pytest.fixture(autouse=True)
def surroundings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CI", "CXX", needs.WITHOUT):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def nothing_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(shutil, "which", lambda name: None)


@every_need
@pytest.mark.usefixtures("nothing_is_installed")
def test_what_is_missing_is_skipped_with_what_to_install(name: str) -> None:
    go_on, has = ASKED[name]
    with pytest.raises(pytest.skip.Exception, match=rf"{name} is missing: (pip|apt-get) install"):
        go_on()
    assert not has()


@every_need
@pytest.mark.usefixtures("nothing_is_installed")
def test_in_ci_what_is_missing_is_a_failure(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", "true")
    for ask in ASKED[name]:
        with pytest.raises(pytest.fail.Exception, match=f"{name} is missing: .*{needs.WITHOUT}"):
            ask()


@every_need
@pytest.mark.usefixtures("nothing_is_installed")
def test_in_ci_what_another_environment_has_is_skipped(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CI", "true")
    monkeypatch.setenv(needs.WITHOUT, f"thunder, {name},")
    go_on, has = ASKED[name]
    with pytest.raises(pytest.skip.Exception, match=f"left to another environment: {name}"):
        go_on()
    assert not has()


@pytest.mark.usefixtures("nothing_is_installed")
def test_a_name_that_no_test_needs_is_a_failure_and_leaves_nothing_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CI", "true")
    monkeypatch.setenv(needs.WITHOUT, "pyarow,zip")
    with pytest.raises(pytest.fail.Exception, match="names pyarow"):
        needs.program("zip")


def test_what_is_there_is_found_in_ci_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", "true")
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setitem(needs.PACKAGES, "json", "")
    assert needs.module("json") is json
    assert needs.module("json.decoder") is json.decoder
    assert needs.chromium() == "/usr/bin/chromium"
    assert needs.compiler("c") == "/usr/bin/cc"
    monkeypatch.setenv("CXX", "clang++")
    assert needs.compiler() == "/usr/bin/clang++"


def test_a_compiler_that_is_chosen_and_not_there_is_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CXX", "/nowhere/c++")
    with pytest.raises(pytest.skip.Exception, match="compiler is missing"):
        needs.compiler()


def test_a_package_that_is_there_and_broken_is_no_missing_one(
    tmp_path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "brokenpackage.py").write_text("import a_module_that_is_not_there")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(needs.PACKAGES, "brokenpackage", "")
    with pytest.raises(ModuleNotFoundError, match="a_module_that_is_not_there"):
        needs.module("brokenpackage")
