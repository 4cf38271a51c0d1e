"""The settings file: ``llmb.toml``, or ``[tool.llmb]`` of ``pyproject.toml``, found and parsed.

The nearest file counts, as for ruff and pytest: the current folder, then the folders above up to
the root of the repository (the folder with ``.git``). Outside of a repository only the current
folder counts. Files are never merged. A table is a command: ``[run]`` has options of ``llmb run``.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from llmb.errors import LlmbError, UsageError, did_you_mean
from llmb.records import members

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

NAME, PYPROJECT = "llmb.toml", "pyproject.toml"
#: Commands that a file may set options of. Commands that judge a run or a bundle read no file: a
#: folder of strangers' bundles could bring a file along.
COMMANDS = ("run", "sweep", "node", "calibrate", "list", "compare")
_MOST_BYTES, _MOST_LINES = 2**20, 4000


@dataclass(frozen=True)
class SettingsFile:
    """A file with settings, parsed but not yet held against the options of a command."""

    path: Path
    text: str
    #: Tables above the commands: ``("tool", "llmb")`` in pyproject.toml.
    root: tuple[str, ...]
    #: Command -> option -> value, as in the file.
    tables: Mapping[str, Mapping[str, Any]]
    #: True: named by ``--config``. False: found in a folder, and so maybe a stranger's.
    is_named: bool = False
    _lines: dict[tuple[str, ...], int] = field(default_factory=dict, compare=False, repr=False)

    @property
    def folder(self) -> Path:
        """The folder that relative paths in the file start from."""
        return self.path.parent

    def place(self, *keys: str) -> str:
        """Return file and line of a key below the root. Example: ``llmb.toml:3``."""
        if not self._lines:
            self._lines.update(_lines_of(self.text))
        line = self._lines.get((*self.root, *keys))
        return str(self.path) if line is None else f"{self.path}:{line}"


def discovered() -> SettingsFile | None:
    """Return the settings file that counts in the current folder, None without such a file.

    Raises:
        UsageError: the file cannot be read, is no TOML, belongs to another user, or has a table
            that is no command.
    """
    for folder in _folders():
        for name, root in ((NAME, ()), (PYPROJECT, ("tool", "llmb"))):
            path = folder / name
            if os.path.isfile(path) and (found := _read(path, root)) is not None:
                _check_owner(path)
                return found
    return None


def named(path: Path) -> SettingsFile:
    """Return the settings file that the user named, such as ``config.toml`` of a run.

    Raises:
        UsageError: as ``discovered``.
    """
    root = ("tool", "llmb") if path.name == PYPROJECT else ()
    found = _read(path, root, is_named=True)
    if found is None:
        raise UsageError(f"{path}: it has no table [tool.llmb]")
    return found


def _folders() -> Iterator[Path]:
    """Yield the current folder, then the folders up to the root of the repository, if any.

    The paths are as short as a user would type: ``.`` and ``..``, so messages name ``llmb.toml``.
    """
    try:
        here = Path.cwd()
    except OSError:  # the current folder was removed
        return
    above = (here, *here.parents)
    root = next((n for n, path in enumerate(above) if os.path.lexists(path / ".git")), 0)
    yield from (Path(os.sep.join([os.pardir] * number)) for number in range(root + 1))


def _check_owner(path: Path) -> None:
    """Refuse a file of another user: in a shared folder, everybody could leave a file."""
    owner = path.stat().st_uid
    if owner not in _trusted():
        raise UsageError(
            f"{path}: it belongs to another user (uid {owner}): remove it, or use "
            "`llmb --isolated`, which reads no settings file"
        )


def _trusted() -> tuple[int, ...]:
    """Return user ids: this user, root, and the owner of the current folder (in a container)."""
    return os.getuid(), 0, Path().stat().st_uid


def _read(path: Path, root: tuple[str, ...], *, is_named: bool = False) -> SettingsFile | None:
    """Return the settings in ``path``; None if the file has no table at ``root``."""
    try:
        text = members.read_file(path, _MOST_BYTES).decode()
        if root and root[-1] not in text:  # a pyproject.toml without a word about llmb
            return None
        data: Any = tomllib.loads(text)
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError) as error:
        raise UsageError(f"{path}: no valid TOML: {str(error)[:200]}") from None
    except LlmbError as error:
        raise UsageError(str(error)) from None
    for key in root:
        data = data.get(key) if isinstance(data, dict) else None
    if data is None:
        return None
    found = SettingsFile(path, text, root, data, is_named)
    if not isinstance(data, dict):
        raise UsageError(f"{path}: [{'.'.join(root)}] is no table")
    for name, table in data.items():
        _check_table(found, name, table)
    return found


def _check_table(found: SettingsFile, name: str, table: Any) -> None:
    from llmb import cli

    every = cli.COMMANDS
    if name not in every and not isinstance(table, dict):
        raise UsageError(
            f"{found.place(name)}: {name} stands outside of a table: write it below the command, "
            "such as [run]"
        )
    if name not in every:
        raise UsageError(
            f"{found.place(name)}: [{name}] is no command{did_you_mean(name, COMMANDS)}"
        )
    if name not in COMMANDS:
        raise UsageError(
            f"{found.place(name)}: [{name}] is refused: a file sets options of "
            f"{', '.join(known for known in COMMANDS if known in every)}; llmb {name} takes its "
            "options from the command line and from variables"
        )
    if not isinstance(table, dict):
        raise UsageError(f"{found.place(name)}: {name} is no table: write [{name}]")


def _lines_of(text: str) -> dict[tuple[str, ...], int]:
    """Return the line on which each key's value ends, counted from 1; tomllib tells no lines.

    A key is on the first line with which the beginning of the text is valid and has the key.
    """
    lines, found = text.splitlines(), dict[tuple[str, ...], int]()
    for number in range(1, min(len(lines), _MOST_LINES) + 1):
        try:
            data = tomllib.loads("\n".join(lines[:number]))
        except (tomllib.TOMLDecodeError, RecursionError):
            continue
        for keys in _keys(data, 4):
            found.setdefault(keys, number)
    return found


def _keys(table: Mapping[str, Any], depth: int) -> Iterator[tuple[str, ...]]:
    for name, value in table.items():
        yield (name,)
        if isinstance(value, dict) and depth > 1:
            yield from ((name, *keys) for keys in _keys(value, depth - 1))
