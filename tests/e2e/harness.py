"""Starts the real ``llmb`` in real processes, and makes small real plugins for it to find."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

import llmb
from tests import patience

#: Shapes at which a whole run is a matter of seconds.
TINY = (
    "--hidden-size=64",
    "--intermediate-size=128",
    "--num-hidden-layers=2",
    "--num-attention-heads=4",
    "--sequence-length=16",
)
#: A tiny run with nothing left to choose.
TINY_RUN = (*TINY, "--batch-size=1", "--timed-steps=20")
#: Two runs with these have the same weights, tokens, learning rates and window.
SAME = ("--seed=7", f"--nonce={'07' * 16}")
#: What makes an x86 processor compute like one without 16-bit instructions.
OLD_PROCESSOR = {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2"}
#: For runs that are about something else: two processes less, half the time.
UNAUDITED = "--audit=off"


def environment(*plugins: Path, **extra: str) -> dict[str, str]:
    """Return the environment of a child in which llmb and ``plugins`` can be imported."""
    paths = [str(path) for path in plugins]
    root = Path(llmb.__file__).resolve().parent.parent
    if root.name != "site-packages":
        paths.append(str(root))
    # A frozen, wide, colourless terminal: the words matter, not where the lines break.
    fixed = {"OMP_NUM_THREADS": "1", "COLUMNS": "200", "NO_COLOR": "1"}
    return {**os.environ, **fixed, "PYTHONPATH": os.pathsep.join(paths), **extra}


def llmb_command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "llmb", *map(str, arguments)]


@dataclass(frozen=True)
class Ended:
    """How a command ended, and where its run directories would be."""

    code: int
    stdout: str
    stderr: str
    output: Path

    @property
    def directory(self) -> Path:
        """The one run directory that was left."""
        (directory,) = (path for path in self.output.iterdir() if path.is_dir())
        return directory

    @property
    def log(self) -> str:
        return (self.directory / "log.txt").read_text()

    @property
    def record(self) -> dict[str, Any]:
        return json.loads((self.directory / "record.json").read_bytes())

    @property
    def finished(self) -> bool:
        return (self.directory / "record.json").exists()

    @property
    def said(self) -> list[str]:
        """What a user is told: every line on stderr."""
        return [line.strip() for line in self.stderr.splitlines() if line.strip()]

    def evidence(self, name: str, repeat: int = 0) -> dict[str, Any]:
        return json.loads((self.directory / f"evidence/repeat-{repeat}/{name}").read_bytes())


def call(*arguments: object, env: dict[str, str] | None = None, cwd: Path | None = None) -> Ended:
    """Run ``llmb`` with ``arguments`` to its end."""
    return ended(llmb_command(*arguments), Path(), env or environment(), cwd)


def run(
    output: Path, *arguments: object, plugins: Sequence[Path] = (), quiet: bool = True, **env: str
) -> Ended:
    """Run ``llmb run`` with ``arguments``; run directories go to ``output``."""
    quietly = ("--quiet",) if quiet else ()
    command = llmb_command("run", "--output-dir", output, *quietly, *arguments)
    return ended(command, output, environment(*plugins, **env), None)


def ended(command: Sequence[str], output: Path, env: dict[str, str], cwd: Path | None) -> Ended:
    """Run ``command`` to its end, as long as it makes progress."""
    runs = None if output == Path() else output
    done = patience.run(command, output=runs, env=env, cwd=cwd)
    return Ended(done.returncode, done.stdout, done.stderr, output)


# -- plugins --------------------------------------------------------------------------------

#: A format without native hardware: runs in it are as short as can be, no ceiling is measured.
_PRELUDE = """\
import os, pathlib, signal, sys, time
import torch
from torch import nn
from llmb.config import FP32
from llmb.plugin import hookimpl

@hookimpl(trylast=True)
def llmb_precisions():
    return [FP32.model_copy(update={"native": False})]

class Around(nn.Module):
    '''Calls before() ahead of every forward pass of the model in it.'''
    def __init__(self, inner, before):
        super().__init__()
        self.inner, self.before, self.calls = inner, before, 0
    def forward(self, ids, labels=None):
        self.calls += 1
        self.before(self.calls, ids)
        return self.inner(ids, labels=labels)
"""


def plugin(folder: Path, name: str, source: str = "", *, distribution: str | None = None) -> Path:
    """Install a plugin of one module into ``folder`` and return ``folder``, for PYTHONPATH."""
    distribution = distribution or f"llmb-{name}"
    module = distribution.replace("-", "_")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{module}.py").write_text(_PRELUDE + "\n" + textwrap.dedent(source))
    info = folder / f"{module}-0.1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 0.1\n")
    (info / "entry_points.txt").write_text(f"[llmb]\n{name} = {module}\n")
    return folder


def with_plugin(name: str) -> tuple[str, ...]:
    """Return the flags of a tiny run with a throw-away plugin."""
    return ("--plugin", name, "--device=cpu", "--precision=FP32", *TINY_RUN)


def run_plugin(tmp_path: Path, source: str, *flags: object, **env: str) -> Ended:
    """Run a throw-away plugin made of ``source`` at tiny shapes."""
    folder = plugin(tmp_path / "plugins", "odd", source)
    return run(tmp_path / "out", *with_plugin("odd"), *flags, plugins=[folder], **env)


# -- processes ------------------------------------------------------------------------------


def _hear_signals() -> None:
    """Undo that whoever runs the tests in the background, or under nohup, ignores signals."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


class Running:
    """A started ``llmb run``, or sweep, whose plain progress is read line by line."""

    def __init__(
        self,
        output: Path,
        *arguments: object,
        plugins: Sequence[Path] = (),
        verb: str = "run",
        first: str = "",
        **env: str,
    ) -> None:
        """Start the command; ``first`` is Python code that its process executes before llmb."""
        self.output = output
        program = llmb_command(verb, "--output-dir", output, *arguments)
        if first:
            program[1:3] = ["-c", f"{first}\nfrom llmb.cli import main\nmain()"]
        self._stderr_path = output.with_suffix(".stderr")
        with self._stderr_path.open("wb") as stderr:
            self.process = subprocess.Popen(
                program,
                env=environment(*plugins, **env),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=stderr,
                start_new_session=True,
                preexec_fn=_hear_signals,
            )
        self.family: list[psutil.Process] = []

    @property
    def stderr(self) -> str:
        return self._stderr_path.read_text()

    def wait_for(self, words: str) -> None:
        """Return when the progress has said ``words``."""
        self.wait_until(lambda: words in self.stderr)

    def wait_until(self, condition: Callable[[], bool]) -> None:
        """Return when ``condition`` holds, as long as there is progress."""

        def holds() -> bool:
            if condition():
                return True
            assert self.process.poll() is None, f"ended too early:\n{self.stderr}"
            return False

        patience.until(holds, [self.process], output=self.output, said=self._stderr_path.read_bytes)

    def wait(self) -> int:
        """Return the exit code when it has ended, as long as there is progress."""
        return patience.ended(self.process, output=self.output, said=self._stderr_path.read_bytes)

    def kill(self, number: int) -> Ended:
        """Send the supervisor, and nobody else, a signal; return how it ended."""
        self.family = psutil.Process(self.process.pid).children(recursive=True)
        self.process.send_signal(number)
        return Ended(self.wait(), "", self.stderr, self.output)

    def survivors(self) -> list[psutil.Process]:
        """Return the children that do not end with it; on a busy machine that takes a moment."""
        _, alive = psutil.wait_procs(self.family, timeout=60)
        return alive


@contextmanager
def running(
    output: Path,
    *arguments: object,
    plugins: Sequence[Path] = (),
    verb: str = "run",
    first: str = "",
    **env: str,
) -> Any:
    """Start ``llmb run``, or another verb; whatever a test leaves of it is killed at the end."""
    started = Running(output, *arguments, plugins=plugins, verb=verb, first=first, **env)
    try:
        yield started
    finally:
        family = started.family
        with suppress(psutil.NoSuchProcess):
            family = [*family, *psutil.Process(started.process.pid).children(recursive=True)]
        for process in [psutil.Process(p.pid) for p in family if p.is_running()]:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        started.process.kill()
        started.process.wait()


def has_module(name: str) -> bool:
    return importlib.util.find_spec(name) is not None


def pip_install(source: Path, site: Path) -> Ended:
    """Install the package in ``source`` into the folder ``site``, without its requirements."""
    # hatchling from the environment where it is, from the index where it is not
    local = ["--no-build-isolation"] if has_module("hatchling") else []
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", *local]
    command = [*pip, "--target", str(site), str(source)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return Ended(0, done.stdout, done.stderr, site)
