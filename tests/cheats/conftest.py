"""Runs that several tests look at, made once for all workers of pytest-xdist."""

from __future__ import annotations

from pathlib import Path

import pytest

from llmb.records import members
from llmb.submission import layout
from tests.cheats import runner
from tests.e2e.conftest import once, shared_folder, tiny_run  # noqa: F401  (fixtures)
from tests.e2e.harness import Ended


def files_of(ended: Ended) -> dict[str, bytes]:
    """Return the files of a finished run that belong into a bundle."""
    assert ended.finished, ended.stderr
    return dict(members.read_folder(ended.directory, layout.is_known))


def _made(once, name: str, plugin: str, *flags: str) -> dict[str, bytes]:  # noqa: F811
    def make(folder: Path) -> Ended:
        return runner.run(folder, plugin, "BF16", "--seed=7", *flags, native=True)

    return files_of(once(name, make))


@pytest.fixture(scope="session")
def honest_files(once):  # noqa: F811
    """The files of an honest run of two repeats."""
    return _made(once, "honest-run", "honest_eager", "--repeats=2")


@pytest.fixture(scope="session")
def other_files(once):  # noqa: F811
    """Those of another honest run, which is like it in everything but its seed."""
    return _made(once, "other-run", "honest_eager", "--repeats=2", "--seed=8")


@pytest.fixture(scope="session")
def customised_files(once):  # noqa: F811
    """Those of a run whose supervisor was told by the plugin's package what to find."""
    return _made(once, "customised-run", "site_customised")


@pytest.fixture(scope="session")
def invalid_files(once):  # noqa: F811
    """Those of a run in which a matrix computed in 8 bits."""
    return _made(once, "invalid-run", "fp8_one_matrix")


@pytest.fixture(scope="session")
def toy_files(once):  # noqa: F811
    """Those of an honest run with as many steps as an official one."""
    return _made(once, "toy-run", "honest_eager", "--timed-steps=50")


@pytest.fixture(scope="session")
def forward_files(once):  # noqa: F811
    """Those of an honest run that trains nothing."""
    flags = ("--workload=litgpt-forward", "--timed-steps=5", "--batch-size=3")
    return _made(once, "forward-run", "honest_eager", *flags)
