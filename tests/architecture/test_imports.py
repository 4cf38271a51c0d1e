"""What light rooms load, each seen in a process of its own: no torch, for --help no pydantic."""

from __future__ import annotations

import json
import os
import pkgutil
import subprocess
import sys
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


def loaded_after(code: str) -> set[str]:
    """Return the top-level packages that a fresh interpreter has loaded after ``code``."""
    report = "\nimport json, sys\nsys.__stderr__.write(json.dumps(sorted(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", code + report],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    return {name.partition(".")[0] for name in json.loads(done.stderr.splitlines()[-1])}


@pytest.mark.parametrize(
    "modules",
    [
        ["llmb"],
        ["llmb.cli"],
        ["llmb.config"],
        [room for room in RECORDS if room != ARRAYS],
        ["llmb.supervision.doctor", "llmb.cli.doctor", "llmb.cli.offers"],
        ["llmb.wire.channel", "llmb.audit.rules", "llmb.workloads", "llmb.plugin"],
        ["llmb.report.page", "llmb.report.collect", "llmb.projection.node_hours"],
        ["llmb.projection.step", "llmb.projection.time_to_solution"],
        ["llmb.reproduction.links", "llmb.cli.standings"],
        ["llmb.comparison.compare", "llmb.comparison.requirements", "llmb.report.exports.tables"],
    ],
    ids=[
        "llmb",
        "cli",
        "config",
        "records",
        "doctor",
        "other light rooms",
        "report",
        "projection",
        "reproduction",
        "comparison",
    ],
)
def test_a_light_room_loads_no_torch(modules: list[str]) -> None:
    assert modules
    loaded = loaded_after("import " + ", ".join(modules))
    assert "llmb" in loaded
    assert not {"torch", "numpy", "safetensors"} & loaded


@pytest.mark.parametrize(
    "modules",
    [
        [ARRAYS],
        AUDIT,
        ["llmb.supervisor"],
        ["llmb.submission.verify", "llmb.cli.verify"],
        ["llmb.submission.package", "llmb.submission.signatures", "llmb.cli.package_submission"],
        ["llmb.sweep.execution", "llmb.sweep.figure", "llmb.cli.sweep", "llmb.cli.sweep_table"],
        ["llmb.sdk.conformance", "llmb.sdk.scaffold", "llmb.sdk.checks.runs"],
    ],
    ids=["arrays", "audit", "supervisor", "verify", "package", "sweep", "sdk"],
)
def test_a_room_that_judges_numbers_reads_them_without_torch_and_numpy(modules: list[str]) -> None:
    loaded = loaded_after("import " + ", ".join(modules))
    assert "safetensors" in loaded, "its format, in a library of four milliseconds"
    assert not {"torch", "numpy"} & loaded


def test_real_data_are_read_with_numpy_and_without_torch_and_tokenizers() -> None:
    loaded = loaded_after("import llmb.inputs.tokens, llmb.inputs.pack")
    assert "numpy" in loaded
    assert not {"torch", "tokenizers"} & loaded


def asked_for(*arguments: str) -> str:
    return (
        f"import sys; sys.argv = ['llmb', *{arguments!r}]\n"
        "from llmb.cli import main\n"
        "try:\n    main()\n"
        "except SystemExit as end:\n    assert not end.code, end.code"
    )


@pytest.mark.parametrize("arguments", [(), ("--version",)], ids=["--help", "--version"])
def test_help_loads_neither_torch_nor_pydantic(arguments: tuple[str, ...]) -> None:
    loaded = loaded_after(asked_for(*(arguments or ("--help",))))
    assert "click" in loaded
    assert not {"torch", "pydantic", "rich", "psutil", "pluggy"} & loaded


@pytest.mark.parametrize(
    "command",
    [
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
    ],
)
def test_help_of_a_command_loads_no_torch(command: str) -> None:
    assert "torch" not in loaded_after(asked_for(command, "--help"))


def test_the_reference_loads_alone() -> None:
    code = "import llmb.reference.llama, llmb.reference.train_loop, llmb.reference.optimizer\n"
    code += "import llmb.reference.data, llmb.reference.formats, llmb.reference.pins, sys\n"
    code += "foreign = [m for m in sys.modules if m.startswith('llmb.')\n"
    code += "           and not m.startswith('llmb.reference')]\nassert not foreign, foreign"
    assert not {"pydantic", "click", "pluggy", "psutil", "rich"} & loaded_after(code)
