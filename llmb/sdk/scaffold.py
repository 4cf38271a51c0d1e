"""Writes a vendor's new package: complete, and passing its own tests as written."""

from __future__ import annotations

import re
import shutil
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from string import Template

import llmb
from llmb.errors import UsageError
from llmb.plugin import discovery

_NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
_MOST_LETTERS = 40
#: Path in the package -> name of the template.
_FILES = {
    "pyproject.toml": "pyproject.toml.txt",
    "$module/__init__.py": "init.py.txt",
    "$module/plugin.py": "plugin.py.txt",
    "$module/backend.py": "backend.py.txt",
    "tests/test_conformance.py": "test_conformance.py.txt",
    "README.md": "README.md.txt",
    ".github/workflows/test.yml": "workflow.yml.txt",
    ".gitignore": "gitignore.txt",
}


@dataclass(frozen=True)
class Package:
    """The package of plugin ``name``, and all spellings of the name.

    Example: plugin ``acme`` is distribution ``llmb-acme`` and module ``llmb_acme``.

    Raises:
        UsageError: the name is not valid, or an installed plugin has the name.
    """

    name: str

    def __post_init__(self) -> None:
        """Refuse an invalid or taken name."""
        if not _NAME.fullmatch(self.name) or len(self.name) > _MOST_LETTERS:
            raise UsageError(
                f"plugin name {self.name!r}: use lower-case letters and digits, words joined by "
                "one '-', a letter first, such as 'acme'"
            )
        if self.name.startswith("llmb-"):
            short = self.name.removeprefix("llmb-")
            raise UsageError(f"plugin name {self.name!r}: leave the prefix out, {short!r} will do")
        for plugin in discovery.installed():
            if plugin.name == self.name:
                raise UsageError(
                    f"plugin name {self.name!r} is taken by {plugin.distribution} {plugin.version}:"
                    " choose another"
                )

    @property
    def distribution(self) -> str:
        """Name for ``pip install``."""
        return f"llmb-{self.name}"

    @property
    def module(self) -> str:
        """Name for ``import``."""
        return self.distribution.replace("-", "_")

    @property
    def words(self) -> dict[str, str]:
        """Values for the templates, by placeholder."""
        parts = [part.capitalize() for part in self.name.split("-")]
        return {
            "name": self.name,
            "distribution": self.distribution,
            "module": self.module,
            "prefix": "".join(parts),
            "title": " ".join(parts),
            "llmb_version": ".".join(llmb.__version__.split(".")[:2]),
        }

    def files(self) -> dict[str, str]:
        """Return path -> text of every file."""
        folder = files("llmb.sdk") / "template"
        words = self.words
        return {
            Template(path).substitute(words): Template(
                (folder / template).read_text(encoding="utf-8")
            ).substitute(words)
            for path, template in _FILES.items()
        }


def write(package: Package, folder: Path) -> tuple[str, ...]:
    """Write ``package`` as ``folder`` and return the paths of all files; on error write none.

    Raises:
        UsageError: the folder is not empty, or cannot be written.
    """
    texts = package.files()
    try:
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise UsageError(f"{folder} is there already and not empty: choose another --directory")
        folder.parent.mkdir(parents=True, exist_ok=True)
        draft = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    except OSError as error:
        raise UsageError(f"cannot write {folder}: {error.strerror}") from error
    try:
        for path, text in texts.items():
            (draft / path).parent.mkdir(parents=True, exist_ok=True)
            (draft / path).write_text(text, encoding="utf-8")
        draft.chmod(0o755)  # only the owner can read a temporary folder
        draft.rename(folder)  # the target is missing or an empty folder
    except OSError as error:
        raise UsageError(f"cannot write {folder}: {error.strerror}") from error
    finally:
        with suppress(OSError):
            shutil.rmtree(draft)
    return tuple(texts)
