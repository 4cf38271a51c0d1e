"""Fixtures made once for all workers of pytest-xdist: a run costs seconds."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests import needs
from tests.e2e import harness
from tests.e2e.harness import Ended

PLUGINS = Path(__file__).parent.parent / "plugins"
FAKEDEV = PLUGINS / "fakedev"


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
    return once("example-site", lambda folder: installed(folder, "llmb-example")).output


@pytest.fixture(scope="session")
def fake_plugin_site(once: Once) -> Path:
    """The folder into which pip has installed the fake device's own plugin package."""
    return once("fakedev-plugin", lambda folder: installed(folder, "llmb-fakedev")).output


def installed(folder: Path, package: str) -> Ended:
    """Let pip install ``package`` into a folder of its own."""
    # a copy, so that building leaves nothing in the repository
    source = shutil.copytree(
        PLUGINS / package, folder / "source", ignore=shutil.ignore_patterns("__pycache__")
    )
    # hatchling from the environment where it is, from the index where it is not
    local = ["--no-build-isolation"] if harness.has_module("hatchling") else []
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", *local]
    command = [*pip, "--target", str(folder / "out"), str(source)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return Ended(0, done.stdout, done.stderr, folder / "out")


@pytest.fixture(scope="session")
def fake_site(request: pytest.FixtureRequest) -> Path:
    """The folder that fakedev is installed in, built once per torch and source (8 s)."""
    needs.compiler()
    made_of = [
        torch.__version__,
        sys.version,
        *(f.read_text() for f in sorted(FAKEDEV.glob("*.*"))),
    ]
    digest = hashlib.sha256("\0".join(made_of).encode()).hexdigest()[:16]
    cache = request.config.cache.mkdir("fakedev")
    site = cache / digest
    with (cache / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not site.exists():
            draft = cache / f"{digest}.{os.getpid()}"
            command = [sys.executable, str(FAKEDEV / "install.py"), str(draft)]
            built = subprocess.run(command, capture_output=True, text=True, check=False)
            assert built.returncode == 0, built.stderr
            draft.rename(site)
    return site


@pytest.fixture(scope="session")
def example_run(once: Once, example_site: Path) -> Ended:
    """A debug run of the installed example package."""
    flags = ("--plugin=example", "--precision=FP32", *harness.TINY_RUN, *harness.SAME)
    return once(
        "example-run",
        lambda folder: harness.run(folder / "out", *flags, plugins=[example_site]),
    )
