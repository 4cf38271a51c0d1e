"""What light rooms load, seen in processes of their own: no torch, for --help no pydantic."""

from __future__ import annotations

import json
import os
import pkgutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

import llmb
import llmb.audit
import llmb.records

ROOT = Path(llmb.__file__).resolve().parent.parent
RECORDS, AUDIT = (
    [f"{room.__name__}.{module.name}" for module in pkgutil.iter_modules(room.__path__)]
    for room in (llmb.records, llmb.audit)
)
ARRAYS = "llmb.records.arrays"

#: Rooms that need neither torch, nor numpy, nor safetensors.
LIGHT = {
    "llmb": ["llmb"],
    "cli": ["llmb.cli"],
    "config": ["llmb.config"],
    "records": [room for room in RECORDS if room != ARRAYS],
    "doctor": ["llmb.supervision.doctor", "llmb.cli.doctor", "llmb.cli.offers"],
    "other light rooms": ["llmb.wire.channel", "llmb.audit.rule", "llmb.workloads", "llmb.plugin"],
    "report": ["llmb.report.document", "llmb.report.collect", "llmb.projection.node_hours"],
    "projection": ["llmb.projection.step", "llmb.projection.time_to_solution"],
    "reproduction": ["llmb.reproduction.links", "llmb.cli.standings"],
    "comparison": [
        "llmb.comparison.compare",
        "llmb.comparison.requirements",
        "llmb.report.exports.tables",
    ],
}
#: Rooms that read the arrays of a bundle with safetensors.
JUDGES = {
    "arrays": [ARRAYS],
    "audit": AUDIT,
    "supervisor": ["llmb.supervisor"],
    "verify": ["llmb.submission.verify", "llmb.cli.verify"],
    "leaderboard": ["llmb.report.page", "llmb.cli.leaderboard"],
    "package": [
        "llmb.submission.package",
        "llmb.submission.signatures",
        "llmb.cli.package_submission",
    ],
    "sweep": [
        "llmb.sweep.execution",
        "llmb.sweep.figure",
        "llmb.cli.sweep",
        "llmb.cli.sweep_table",
    ],
    "sdk": ["llmb.sdk.conformance", "llmb.sdk.scaffold", "llmb.sdk.checks.runs"],
}
DATA = ["llmb.inputs.tokens", "llmb.inputs.pack"]
COMMANDS = [
    "reproduce",
    "run",
    "sweep",
    "show",
    "data",
    "calibrate",
    "plugin",
    "doctor",
    "verify",
    "report",
    "project",
    "compare",
    "export",
]


def loaded_by_each(statements: Iterable[str]) -> list[set[str]]:
    """Return which top-level packages each statement loads, beside those of the ones before.

    All are executed by one interpreter; llmb itself is loaded anew for each.
    """
    code = (
        "import json, sys\n"
        "for statement in json.loads(sys.argv.pop()):\n"
        "    for name in [n for n in sys.modules if n.partition('.')[0] == 'llmb']:\n"
        "        del sys.modules[name]\n"
        "    before = set(sys.modules)\n"
        "    exec(statement)\n"
        "    print(json.dumps(sorted(set(sys.modules) - before)), file=sys.__stderr__)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, json.dumps(list(statements))],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    return [
        {name.partition(".")[0] for name in json.loads(line)} for line in done.stderr.splitlines()
    ]


@pytest.fixture(scope="module")
def loaded() -> dict[str, set[str]]:
    """What each room adds to the rooms before it, the lightest first."""
    rooms = {**LIGHT, **JUDGES, "data": DATA}
    added = loaded_by_each("import " + ", ".join(modules) for modules in rooms.values())
    return dict(zip(rooms, added, strict=True))


@pytest.mark.parametrize("room", LIGHT)
def test_a_light_room_loads_no_torch(loaded: dict[str, set[str]], room: str) -> None:
    assert LIGHT[room]
    assert "llmb" in loaded[room]
    assert not {"torch", "numpy", "safetensors"} & loaded[room]


@pytest.mark.parametrize("room", JUDGES)
def test_a_room_that_judges_numbers_reads_them_without_torch_and_numpy(
    loaded: dict[str, set[str]], room: str
) -> None:
    assert "safetensors" in loaded["arrays"], "its format, in a library of four milliseconds"
    assert not {"torch", "numpy"} & loaded[room]


def test_real_data_are_read_with_numpy_and_without_torch_and_tokenizers(
    loaded: dict[str, set[str]],
) -> None:
    assert "numpy" in loaded["data"]
    assert not {"torch", "tokenizers"} & set().union(*loaded.values())


@pytest.fixture(scope="module")
def helped() -> dict[tuple[str, ...], set[str]]:
    """What each way to ask for help adds to those before it."""
    asked = [("--help",), ("--version",), *((command, "--help") for command in COMMANDS)]
    added = loaded_by_each(
        f"sys.argv = ['llmb', *{arguments!r}]\n"
        "from llmb.cli import main\n"
        "try:\n    main()\n"
        "except SystemExit as end:\n    assert not end.code, end.code"
        for arguments in asked
    )
    return dict(zip(asked, added, strict=True))


def test_help_loads_neither_torch_nor_pydantic(helped: dict[tuple[str, ...], set[str]]) -> None:
    assert "click" in helped[("--help",)]
    for flag in ("--help", "--version"):
        assert not {"torch", "pydantic", "rich", "psutil", "pluggy"} & helped[(flag,)]


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_a_command_loads_no_torch(
    helped: dict[tuple[str, ...], set[str]], command: str
) -> None:
    assert "torch" not in helped[(command, "--help")]
