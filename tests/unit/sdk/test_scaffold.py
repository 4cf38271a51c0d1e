"""The package that ``llmb plugin new`` writes: complete, explained, and never over something."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

import llmb
from llmb.cli import plugin_new
from llmb.errors import UsageError
from llmb.plugin import discovery, hookspecs
from llmb.sdk import scaffold
from llmb.sdk.scaffold import Package
from tests import needs
from tests.unit import builders_runtime

HOOKS = {name for name in vars(hookspecs) if name.startswith("llmb_")}


@pytest.fixture
def package(tmp_path: Path) -> Path:
    folder = tmp_path / "llmb-acme-x1"
    scaffold.write(Package("acme-x1"), folder)
    return folder


# -- names ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["acme", "a", "acme2", "acme-x1", "a-b-c"])
def test_a_plain_name_is_accepted_and_spelled_for_pip_and_python(name: str) -> None:
    package = Package(name)
    assert package.distribution == f"llmb-{name}"
    assert package.module == f"llmb_{name.replace('-', '_')}"
    assert package.module.isidentifier()


@pytest.mark.parametrize(
    "name",
    ["", "Acme", "2acme", "-acme", "acme-", "a--b", "a_b", "a.b", "a b", "../a", "ä", "a" * 41],
)
def test_a_name_that_pip_or_python_would_stumble_over_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match="lower-case letters"):
        Package(name)


def test_the_prefix_belongs_to_the_distribution() -> None:
    with pytest.raises(UsageError, match="'acme' will do"):
        Package("llmb-acme")


@pytest.mark.parametrize("name", list(discovery.BUILT_IN))
def test_the_name_of_a_built_in_plugin_is_taken(name: str) -> None:
    with pytest.raises(UsageError, match="taken by llmb "):
        Package(name)


def test_the_name_of_an_installed_plugin_is_taken(site: Path) -> None:
    builders_runtime.install(site, "llmb-acme", {"acme": "llmb_acme"}, version="2.5")
    with pytest.raises(UsageError, match=r"taken by llmb-acme 2\.5"):
        Package("acme")


# -- what is written --------------------------------------------------------------------------


def test_every_file_is_written_and_no_placeholder_is_left(package: Path) -> None:
    files = {p.relative_to(package).as_posix() for p in package.rglob("*") if p.is_file()}
    assert files == {
        ".github/workflows/test.yml",
        ".gitignore",
        "README.md",
        "llmb_acme_x1/__init__.py",
        "llmb_acme_x1/backend.py",
        "llmb_acme_x1/plugin.py",
        "pyproject.toml",
        "tests/test_conformance.py",
    }
    for name in files:
        text = (package / name).read_text()
        assert not re.search(r"\$\{?[a-z_]+\}?", text.replace("${{", "")), name
        assert text.endswith("\n"), name


def test_the_project_names_its_plugin_and_the_kit_names_the_same(package: Path) -> None:
    project = (package / "pyproject.toml").read_text()
    assert 'name = "llmb-acme-x1"' in project
    assert '[project.entry-points.llmb]\nacme-x1 = "llmb_acme_x1.plugin"\n' in project
    release = ".".join(llmb.__version__.split(".")[:2])
    assert f'dependencies = ["llmb>={release}", "torch"]' in project
    test = (package / "tests/test_conformance.py").read_text()
    assert 'plugin_name = "acme-x1"' in test
    assert "class TestAcmeX1(PluginConformance)" in test


def uncommented(text: str) -> str:
    """Return the text with every hook that stands as a comment put into force."""
    return "\n".join(line.removeprefix("# ").removeprefix("#") for line in text.splitlines())


def test_every_hook_of_llmb_is_shown_with_an_explanation(package: Path) -> None:
    text = (package / "llmb_acme_x1/plugin.py").read_text()
    tree = ast.parse(uncommented(text).replace("-- rarely needed", "# rarely needed"))
    shown = {
        node.name: node
        for node in tree.body
        if isinstance(node, ast.FunctionDef) and node.name.startswith("llmb_")
    }
    assert set(shown) == HOOKS
    for name, node in shown.items():
        assert ast.get_docstring(node), name
        assert [ast.unparse(mark) for mark in node.decorator_list] == ["hookimpl"]
        spec = getattr(hookspecs, name).__code__
        taken = {argument.arg for argument in node.args.args}
        assert taken <= set(spec.co_varnames[: spec.co_argcount]), name


def test_the_package_imports_nothing_of_llmb_but_the_door_for_vendors(package: Path) -> None:
    imported = {
        node.module
        for file in (package / "llmb_acme_x1").glob("*.py")
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("llmb.")
    }
    assert imported
    assert all(m.startswith(("llmb.plugin", "llmb.config", "llmb.errors")) for m in imported)


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    [
        ["ruff", "check", "--isolated"],
        ["ruff", "format", "--check"],
        pytest.param(["mypy", "--strict"], marks=pytest.mark.full),
    ],
    ids=" ".join,
)
def test_the_package_is_clean_by_the_common_tools(package: Path, command: list[str]) -> None:
    needs.package(command[0])
    target = ["llmb_acme_x1"] if command[0] == "mypy" else ["."]
    if "--isolated" in command:
        target += ["--line-length", "100"]
    done = subprocess.run(
        [sys.executable, "-m", *command, *target],
        cwd=package,
        env={**os.environ, "PYTHONPATH": str(Path(llmb.__file__).parent.parent)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


# -- where it is written ----------------------------------------------------------------------


def test_an_empty_folder_is_filled_and_missing_parents_are_made(tmp_path: Path) -> None:
    for folder in (tmp_path / "empty", tmp_path / "a" / "b" / "c"):
        if folder.name == "empty":
            folder.mkdir()
        written = scaffold.write(Package("acme"), folder)
        assert all((folder / name).is_file() for name in written)


def test_a_folder_that_holds_something_is_left_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "README.md").write_text("mine")
    with pytest.raises(UsageError, match="not empty"):
        scaffold.write(Package("acme"), tmp_path / "mine")
    assert [p.name for p in tmp_path.rglob("*")] == ["mine", "README.md"]
    assert (tmp_path / "mine" / "README.md").read_text() == "mine"


def test_a_file_in_the_place_of_the_folder_is_left_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("mine")
    with pytest.raises(UsageError, match="there already"):
        scaffold.write(Package("acme"), tmp_path / "mine")
    with pytest.raises(UsageError, match="cannot write"):
        scaffold.write(Package("acme"), tmp_path / "mine" / "below")


def test_nothing_is_left_of_a_package_that_could_not_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = []

    def full(path: Path, text: str, **named: object) -> int:
        written.append(path)
        if len(written) > 3:
            raise OSError(28, "No space left on device")
        return len(text)

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(UsageError, match="No space left"):
        scaffold.write(Package("acme"), tmp_path / "acme")
    assert list(tmp_path.iterdir()) == []


def test_the_folder_can_be_read_by_others_as_any_other(package: Path, tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    plain.mkdir(mode=0o755)
    assert package.stat().st_mode == plain.stat().st_mode


def test_a_file_is_no_folder_to_write_a_package_to(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("")
    arguments = ["acme", "--directory", str(tmp_path / "taken")]
    found = CliRunner().invoke(plugin_new.command, arguments)
    assert found.exit_code == 2
    assert "is a file" in found.output
