"""When a bundle came into its repository, by git; no code of the repository is run."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from llmb.config import environment
from llmb.records.bundle import MANIFEST

_TIMEOUT_S = 120
#: A repository's settings are untrusted: the overridden settings could start a program, or wait.
_GIT = (
    "--no-pager",
    "--literal-pathspecs",
    "-c",
    "core.fsmonitor=",
    "-c",
    f"core.hooksPath={os.devnull}",
)
#: git may not fetch, prompt, lock, or replace objects.
_ENVIRONMENT = {
    "GIT_ALLOW_PROTOCOL": "none",
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_NO_REPLACE_OBJECTS": "1",
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_TERMINAL_PROMPT": "0",
}


@dataclass(frozen=True)
class Arrival:
    """The commit of the main line that added a bundle."""

    #: The top folder of the repository.
    repository: str
    #: Number of commits on the main line at that time.
    position: int


def arrival(place: Path) -> Arrival | None:
    """Return when the bundle in the folder or zip ``place`` came into its repository.

    The main line is HEAD and its first parents: a merge counts, not the day on which the merged
    branch began. The present manifest counts: a bundle that replaced an older bundle came with its
    own commit. Dates do not count, because anybody can write any date.

    Returns:
        None without git, repository or history, and for an uncommitted bundle.
    """
    place = Path(os.path.realpath(place))
    file = place / MANIFEST if place.is_dir() else place
    try:
        where = _git(file.parent, "rev-parse", "--show-toplevel", "--show-prefix").split("\n")
        commits = _git(
            file.parent, "rev-list", "--first-parent", "HEAD", "--", file.name
        ).splitlines()
        blob = _git(file.parent, "hash-object", "--no-filters", "--", file.name).strip()
        asked = "".join(f"{commit}:{where[1]}{file.name}\n" for commit in commits)
        held = _git(file.parent, "cat-file", "--batch-check", given=asked).splitlines()
        with_it = [
            commit for commit, line in zip(commits, held, strict=True) if line.split(" ")[0] == blob
        ]
        if not with_it or held[0].split(" ")[0] != blob:
            return None
        count = _git(file.parent, "rev-list", "--first-parent", "--count", with_it[-1])
        return Arrival(where[0], int(count))
    except (OSError, ValueError, subprocess.SubprocessError):
        return None


def _git(folder: Path, *words: str, given: str = "") -> str:
    program = shutil.which("git")
    if program is None:
        raise FileNotFoundError("git")
    own = {name: value for name, value in environment().items() if not name.startswith("GIT_")}
    return subprocess.run(
        [program, *_GIT, *words],
        cwd=folder,
        env={**own, **_ENVIRONMENT},
        input=given,
        capture_output=True,
        text=True,
        encoding="utf-8",
        check=True,
        timeout=_TIMEOUT_S,
    ).stdout
