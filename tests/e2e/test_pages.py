"""The pages of a reader's ways, executed: every command, in order, in an empty folder.

A command is run as printed, except for three kinds. A command of ``SMALLER`` gets options that make
the run small. A command of ``ELSEWHERE`` needs a network, a device or minutes, and is tested
elsewhere. A name of ``OWN``, such as RUN_DIR, is a reader's own.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests import committed, pages
from tests.e2e import harness
from tests.e2e.conftest import Once
from tests.e2e.harness import Ended
from tests.pages import ROOT, Command

_DEBUG = " --preset debug --timed-steps 5 --audit off"
#: Options that make a printed command small.
SMALLER = {
    "llmb run --workload llama-1.4b": _DEBUG,
    "llmb run --precision BF16 --device cpu --batch-size 1": _DEBUG,
    "llmb run --batch-size auto --repeats 3": _DEBUG,
    "llmb run --workload gpt2-125m --micro-batch-size 4 --accumulate 2": _DEBUG,
    "llmb run --workload nemo-bert-base --preset debug": " --timed-steps 5 --audit off",
    "llmb run --workload litgpt-forward --preset debug": " --timed-steps 5 --audit off",
    "llmb run --workload litgpt-generation --preset debug": " --timed-steps 2 --audit off",
    "llmb run --workload mine.json --precision BF16": _DEBUG + " --hidden-size 64",
    "llmb run --plugin acme --preset debug": " --timed-steps 5 --audit off",
    "llmb sweep": _DEBUG + " --precision FP32 --batch-size 1",
    "llmb node": " --preset debug --timed-steps 5 --nproc 1",
    "llmb audit RUN_DIR --only E2 --part layers.3.mlp.up_proj": " --part layers.1.mlp.up_proj",
    "llmb package-submission RUN_DIR --submitter acme --system box-8x --availability available "
    "--sign ~/.ssh/id_ed25519": " --debug",
}
#: Commands that are not run, with the reason.
ELSEWHERE = {
    "llmb run --within 30m": "an official run: tests/unit/supervision/test_sizing.py",
    "llmb run --plugin acme -O option=value": "a vendor's package: tests/e2e/test_sdk.py",
    "llmb run --nproc 4 --dp-shard 4": "four ranks: tests/e2e/test_ranks.py",
    "llmb run --nproc 4 --pp 4": "four ranks: tests/e2e/test_ranks.py",
    "llmb run --workload litgpt-train --executor inductor --dynamic --preset debug": (
        "minutes of compiling: tests/e2e/test_modes.py"
    ),
    "llmb run --plugin cuda --precision FP8 -O fp8=rowwise -O compile=max-autotune": "a device",
    "llmb plugin check acme": "about a minute: tests/e2e/test_sdk.py",
    "llmb compare --baseline main --fail-on regression --by 3% RUN_DIR": "a branch of a history",
    "llmb verify BUNDLE --signers allowed_signers": "a key: tests/unit/submission",
    "llmb verify BUNDLE --evidence https://acme.example/evidence": "a network",
}
#: Words that begin commands of other programs, such as pip.
OTHERS = ("pip install .", "pip install -c", "PIP_CONSTRAINT=")
#: Exit codes of commands that a page says to fail.
CODES = {
    "PYTHONPATH=llmb-demo/plugin llmb run --plugin cheat --preset debug --precision BF16 "
    "--device cpu": 5,
    "llmb audit llmb-demo/runs/*-cheat": 5,
}
PAGES = {
    name: ROOT / "docs" / f"{name}.md" for name in ("tutorial", "usage", "workloads", "vendors")
}


def every() -> list[str]:
    return [command.line for page in PAGES.values() for command in pages.commands(page)]


def test_no_exception_is_left_of_a_page_that_has_changed() -> None:
    assert {*SMALLER, *ELSEWHERE, *CODES} <= {*every()}


class Reader:
    """Follows a page in ``folder``."""

    def __init__(self, folder: Path, demo: Ended) -> None:
        self.folder = folder
        shutil.copytree(demo.output / "llmb-demo", folder / "llmb-demo")
        (bundle,) = (folder / "llmb-demo/submissions").rglob("1x-*")
        shutil.copytree(bundle.parents[3], folder / "submissions")
        (run,) = (folder / "llmb-demo/runs").glob("*-cpu")
        (folder / "config.json").write_text((ROOT / "tests/e2e/pages/config.json").read_text())
        self._demo, self._site = demo, folder / "site"
        self._own = {
            "RUN_DIR": run,
            "BUNDLE": bundle,
            **dict(zip(("BASE", "RUN"), committed.slower_and_faster(), strict=True)),
        }
        tools = folder / "tools"
        tools.mkdir()
        environment = harness.environment()
        root = environment.pop("PYTHONPATH")
        # The pages set PYTHONPATH for a plugin: llmb itself must be found without it.
        paths = os.pathsep.join(("$PYTHONPATH", str(self._site), root))
        program = f'PYTHONPATH="{paths}" exec "{sys.executable}" -m llmb "$@"'
        (tools / "llmb").write_text(f"#!/bin/sh\n{program}\n")
        (tools / "llmb").chmod(0o755)
        self._environment = {
            **environment,
            "PATH": f"{tools}{os.pathsep}{os.environ['PATH']}",
            "XDG_CACHE_HOME": str(folder / "cache"),
        }

    def follow(self, command: Command) -> str:
        """Run ``command``; return its output.

        Raises:
            AssertionError: the command ended with another exit code than the page says.
        """
        if command.line == "llmb demo":
            return self._demo.stdout
        if command.line == "pip install -e './llmb-acme[dev]'":
            return harness.pip_install(self.folder / "llmb-acme", self._site).stdout
        line = command.line.replace(" --sign ~/.ssh/id_ed25519", "")
        words = (line + SMALLER.get(command.line, "")).split(" ")
        own = {**self._own, "SWEEP_DIR": next(self.folder.glob("runs/sweep-*"), Path())}
        line = " ".join(str(own.get(word, word)) for word in words)
        done = subprocess.run(
            ["sh", "-c", line],
            cwd=self.folder,
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=600,
        )
        assert done.returncode == CODES.get(command.line, 0), f"{line}\n{done.stderr[-2000:]}"
        assert "Traceback" not in done.stderr, done.stderr
        return done.stdout + done.stderr


@pytest.fixture(scope="session")
def demo(once: Once) -> Ended:
    """``llmb demo``, made once for all pages."""

    def make(folder: Path) -> Ended:
        out = folder / "out"
        out.mkdir()
        done = harness.call("demo", "--quiet", cwd=out)
        return Ended(done.code, done.stdout, done.stderr, out)

    return once("demo", make)


@pytest.mark.parametrize("page", PAGES)
def test_every_command_of_a_page_works_as_printed(page: str, demo: Ended, tmp_path: Path) -> None:
    assert demo.code == 0, demo.stderr
    reader, lacking = Reader(tmp_path, demo), []
    for command in pages.commands(PAGES[page]):
        if command.line in ELSEWHERE or command.line.startswith(OTHERS):
            continue
        output = {*pages.stable(reader.follow(command))}
        lacking += [line for line in pages.stable(command.shown) if line not in output]
    assert lacking == []
