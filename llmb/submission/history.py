"""When a bundle came into its repository, by git; no code of the repository is run."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

from llmb.records.bundle import MANIFEST
from llmb.records.repository import git


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
        where = git(file.parent, "rev-parse", "--show-toplevel", "--show-prefix").split("\n")
        commits = git(
            file.parent, "rev-list", "--first-parent", "HEAD", "--", file.name
        ).splitlines()
        blob = git(file.parent, "hash-object", "--no-filters", "--", file.name).strip()
        asked = "".join(f"{commit}:{where[1]}{file.name}\n" for commit in commits)
        held = git(file.parent, "cat-file", "--batch-check", given=asked).splitlines()
        with_it = [
            commit for commit, line in zip(commits, held, strict=True) if line.split(" ")[0] == blob
        ]
        if not with_it or held[0].split(" ")[0] != blob:
            return None
        count = git(file.parent, "rev-list", "--first-parent", "--count", with_it[-1])
        return Arrival(where[0], int(count))
    except (OSError, ValueError, subprocess.SubprocessError):
        return None
