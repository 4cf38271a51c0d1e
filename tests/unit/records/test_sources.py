"""llmb's sources against a tag, HEAD or the installed wheel, in repositories made for the test."""

from __future__ import annotations

import base64
import hashlib
import os
import subprocess
from importlib.metadata import PackageNotFoundError, PackagePath
from pathlib import Path
from types import SimpleNamespace

import pytest

import llmb
from llmb.records import sources

VERSION_TAG = f"v{llmb.__version__}"


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give a package folder in which nothing is under version control yet."""
    for name in [name for name in os.environ if name.startswith("GIT_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    monkeypatch.setenv("GIT_CONFIG_SYSTEM", os.devnull)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    folder = tmp_path / "llmb"
    (folder / "cli").mkdir(parents=True)
    (folder / "__init__.py").write_text("ONE = 1\n")
    (folder / "cli" / "run.py").write_text("TWO = 2\n")
    monkeypatch.setattr(sources, "_PACKAGE", folder)
    return folder


def git(package: Path, *arguments: str) -> str:
    who = ["-c", "user.name=t", "-c", "user.email=t@t", "-c", "commit.gpgsign=false"]
    command = ["git", "-C", str(package.parent), *who, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def repository(package: Path) -> Path:
    """Give the package, committed in a work tree with another file beside it."""
    (package.parent / "README.md").write_text("hello\n")
    git(package, "init", "-q")
    git(package, "add", ".")
    git(package, "commit", "-q", "-m", "first")
    return package


def test_a_clean_work_tree_differs_in_nothing_from_head(repository: Path) -> None:
    found = sources.compare()
    assert found.base == f"git HEAD {git(repository, 'rev-parse', 'HEAD')}"
    assert found.changed == ()
    assert found.text == ""


def test_changed_staged_new_and_deleted_files_are_named_and_shown(repository: Path) -> None:
    (repository / "__init__.py").write_text("ONE = 11\n")
    (repository / "cli" / "new.py").write_text("THREE = 3\n")
    (repository / "staged.py").write_text("FOUR = 4\n")
    git(repository, "add", "llmb/staged.py")
    (repository / "cli" / "run.py").unlink()
    found = sources.compare()
    assert found.changed == tuple(
        f"llmb/{name}" for name in ("__init__.py", "cli/new.py", "cli/run.py", "staged.py")
    )
    for words in ("-ONE = 1\n+ONE = 11", "new file: llmb/cli/new.py", "+FOUR = 4", "-TWO = 2"):
        assert words in found.text


def test_files_beside_the_package_are_no_difference(repository: Path) -> None:
    (repository.parent / "README.md").write_text("changed\n")
    (repository.parent / "other.py").write_text("")
    assert sources.compare().changed == ()


def test_ignored_files_are_no_difference(repository: Path) -> None:
    (repository.parent / ".git" / "info" / "exclude").write_text("__pycache__/\n")
    (repository / "__pycache__").mkdir()
    (repository / "__pycache__" / "x.pyc").write_bytes(b"")
    assert sources.compare().changed == ()


def test_where_the_release_is_tagged_it_is_the_base_and_later_commits_are_differences(
    repository: Path,
) -> None:
    git(repository, "tag", VERSION_TAG)
    (repository / "__init__.py").write_text("ONE = 11\n")
    git(repository, "commit", "-q", "-a", "-m", "second")
    found = sources.compare()
    tagged = git(repository, "rev-parse", f"{VERSION_TAG}^{{commit}}")
    assert found.base == f"git {VERSION_TAG} {tagged}"
    assert found.changed == ("llmb/__init__.py",)


def test_an_annotated_tag_stands_for_its_commit(repository: Path) -> None:
    git(repository, "tag", "-a", VERSION_TAG, "-m", "release")
    assert sources.compare().base == f"git {VERSION_TAG} {git(repository, 'rev-parse', 'HEAD')}"


def test_the_users_own_git_settings_do_not_change_the_diff(repository: Path) -> None:
    git(repository, "config", "diff.external", "true")
    git(repository, "config", "color.ui", "always")
    (repository / "__init__.py").write_text("ONE = 11\n")
    text = sources.compare().text
    assert "-ONE = 1\n+ONE = 11" in text


def record_hash(data: bytes) -> SimpleNamespace:
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
    return SimpleNamespace(mode="sha256", value=digest)


@pytest.fixture
def wheel(package: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give the package as a wheel lists it, without version control."""
    listed = []
    for file in sorted(package.rglob("*.py")):
        path = PackagePath(file.relative_to(package.parent))
        path.hash = record_hash(file.read_bytes())
        listed.append(path)
    for name in ("llmb-0.1.0.dist-info/RECORD", "llmb/__pycache__/x.pyc"):
        path = PackagePath(name)
        path.hash = None
        listed.append(path)
    monkeypatch.setattr(sources, "files", lambda name: listed)
    return package


def test_an_installed_wheel_left_alone_differs_in_nothing(wheel: Path) -> None:
    found = sources.compare()
    assert found.base == f"installed wheel llmb {llmb.__version__}"
    assert found.changed == ()
    assert found.text == ""


def test_edited_removed_and_added_files_of_a_wheel_are_named(wheel: Path) -> None:
    (wheel / "__init__.py").write_text("ONE = 11\n")
    (wheel / "cli" / "run.py").unlink()
    (wheel / "cli" / "extra.py").write_text("")
    found = sources.compare()
    expected = ("llmb/__init__.py", "llmb/cli/extra.py", "llmb/cli/run.py")
    assert found.changed == expected
    assert found.text == "".join(f"differs from the wheel: {name}\n" for name in expected)


def test_a_compiled_module_put_beside_the_sources_of_a_wheel_is_named(wheel: Path) -> None:
    (wheel / "config.abi3.so").write_bytes(b"\x7fELF")
    assert sources.compare().changed == ("llmb/config.abi3.so",)


@pytest.mark.parametrize("editable", [True, False])
def test_without_work_tree_and_wheel_nothing_was_compared_and_none_says_so(
    package: Path, monkeypatch: pytest.MonkeyPatch, editable: bool
) -> None:
    def files(name: str) -> list[PackagePath]:
        if editable:
            return [PackagePath("llmb-0.1.0.dist-info/RECORD"), PackagePath("_llmb.pth")]
        raise PackageNotFoundError(name)

    monkeypatch.setattr(sources, "files", files)
    found = sources.compare()
    assert found == sources.SourcesDiff("no git work tree and no installed wheel", None, "")


def test_a_machine_without_git_falls_back_to_the_wheel(
    wheel: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_git(*_: object, **__: object) -> None:
        raise FileNotFoundError("git")

    monkeypatch.setattr(subprocess, "run", no_git)
    assert sources.compare().base.startswith("installed wheel")
