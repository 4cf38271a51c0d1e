"""Fixtures made once for all workers of pytest-xdist: a run costs seconds."""

from __future__ import annotations

import fcntl
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.e2e import harness
from tests.e2e.harness import Ended

EXAMPLE = Path(__file__).parent.parent / "plugins" / "llmb-example"


@pytest.fixture(scope="session")
def shared_folder(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Path:
    """A folder that every worker of this session sees."""
    base = tmp_path_factory.getbasetemp()
    return base if worker_id == "master" else base.parent


Once = Callable[[str, Callable[[Path], Ended]], Ended]


@pytest.fixture(scope="session")
def once(shared_folder: Path) -> Once:
    """Make something in a folder once per session, whichever worker comes first."""

    def make(name: str, maker: Callable[[Path], Ended]) -> Ended:
        folder = shared_folder / name
        with (shared_folder / f"{name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if (folder / "done").exists():
                code, stdout, stderr = (
                    (folder / part).read_text() for part in ("code", "stdout", "stderr")
                )
                return Ended(int(code), stdout, stderr, folder / "out")
            folder.mkdir()
            made = maker(folder)
            for part, text in (
                ("code", str(made.code)),
                ("stdout", made.stdout),
                ("stderr", made.stderr),
            ):
                (folder / part).write_text(text)
            (folder / "done").touch()
            return made

    return make


@pytest.fixture(scope="session")
def tiny_run(once: Once) -> Ended:
    """A debug run with the source document's own flags, which everybody may look at."""
    source = ("--batch-size=1", "--precision=BF16", "--device=cpu")
    flags = (*source, *harness.TINY, "--timed-steps=20", "--seed=7", "--json")
    return once("tiny-run", lambda folder: harness.run(folder / "out", *flags, quiet=False))


@pytest.fixture(scope="session")
def example_site(once: Once) -> Path:
    """The folder into which pip has installed the example package."""

    def install(folder: Path) -> Ended:
        # hatchling from the environment where it is, from the index where it is not
        local = ["--no-build-isolation"] if harness.has_module("hatchling") else []
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", *local]
        command = [*pip, "--target", str(folder / "out"), str(_copy(folder))]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return Ended(0, done.stdout, done.stderr, folder / "out")

    return once("example-site", install).output


def _copy(folder: Path) -> Path:
    """Return a copy of the example, so that building it leaves nothing in the repository."""
    return shutil.copytree(EXAMPLE, folder / "source", ignore=shutil.ignore_patterns("__pycache__"))


@pytest.fixture(scope="session")
def example_run(once: Once, example_site: Path) -> Ended:
    """A debug run of the installed example package."""
    flags = ("--plugin=example", "--precision=FP32", *harness.TINY_RUN, "--seed=7")
    return once(
        "example-run",
        lambda folder: harness.run(folder / "out", *flags, plugins=[example_site]),
    )
