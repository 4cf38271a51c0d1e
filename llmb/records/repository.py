"""A git repository as a source of facts; no code and no setting of the repository is run."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from llmb.config import environment

_TIMEOUT_S = 120
#: Longest wait of ``head``, which a run calls at its end.
_HEAD_TIMEOUT_S = 10
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
#: Branch of a checkout without a branch, by the services that make such checkouts, GitHub and
#: GitLab. A pull request is ``7/merge`` on GitHub: a stranger chooses the name of its head, and may
#: choose the name of the baseline.
_BRANCH_VARIABLES = ("GITHUB_REF_NAME", "CI_COMMIT_REF_NAME")
_LONGEST_BRANCH = 255


@dataclass(frozen=True)
class Head:
    """The commit that is checked out, in hex, and the branch; None: unknown."""

    commit: str | None
    branch: str | None


def head(folder: Path, variables: Mapping[str, str] | None = None) -> Head:
    """Return the commit and the branch of the repository around ``folder``.

    A checkout of a commit without a branch has the branch that the CI service names in a variable,
    such as ``GITHUB_REF_NAME``. Uncommitted changes do not count.

    Args:
        folder: any folder of a checkout.
        variables: the environment; None: the environment of this process.
    """
    try:
        commit = git(folder, "rev-parse", "--verify", "HEAD", timeout_s=_HEAD_TIMEOUT_S).strip()
    except (OSError, ValueError, subprocess.SubprocessError):
        return Head(None, None)
    try:
        branch = git(
            folder, "symbolic-ref", "--quiet", "--short", "HEAD", timeout_s=_HEAD_TIMEOUT_S
        ).strip()
    except (OSError, ValueError, subprocess.SubprocessError):
        known = environment() if variables is None else variables
        branch = next((known[name] for name in _BRANCH_VARIABLES if known.get(name)), "")
    is_hex = re.fullmatch(r"[0-9a-f]{40,64}", commit) is not None
    return Head(commit if is_hex else None, branch[:_LONGEST_BRANCH] or None)


def git(folder: Path, *words: str, given: str = "", timeout_s: float = _TIMEOUT_S) -> str:
    """Return the output of ``git words`` in ``folder``; ``given`` is the standard input.

    Raises:
        OSError: no git.
        ValueError: the output is not UTF-8.
        subprocess.SubprocessError: git failed, or took longer than ``timeout_s`` seconds.
    """
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
        timeout=timeout_s,
    ).stdout
