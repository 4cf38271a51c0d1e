"""docs/growing.md is followed to the letter, in a copy of llmb."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from textwrap import dedent, indent

import pytest

from tests import committed

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/growing.md").read_text()
SECTIONS = dict(re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL))


def blocks(section: str) -> list[str]:
    """Return the code of a section of the page; ``text`` is a part of a table."""
    found = re.findall(
        r"^( *)```(?:python|text)\n(.*?)^ *```", SECTIONS[section], re.MULTILINE | re.DOTALL
    )
    return [dedent(code) for _, code in found]


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy of llmb and of its tests."""
    for name in ("llmb", "tests", "docs", "benchmarks"):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / name, tmp_path / name, ignore=ignored)
    for name in ("pyproject.toml", "README.md", "tox.ini", "CHANGELOG.md"):
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


def insert(file: Path, before: str, code: str) -> None:
    text = file.read_text()
    assert text.count(before) == 1, before
    file.write_text(
        text.replace(before, indent(code, " " * 4 * before.startswith("    ")) + before)
    )


def run(copy: Path, *words: str) -> str:
    """Return what ``python`` says to ``words`` in the copy."""
    environment = {**os.environ, "PYTHONPATH": str(copy), "XDG_CACHE_HOME": str(copy / "cache")}
    done = subprocess.run(
        [sys.executable, *words],
        cwd=copy,
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


def test_a_workload(copy: Path) -> None:
    ours, second, count = blocks("A workload")
    table = copy / "llmb/workloads/table.py"
    insert(table, '        Workload(\n            "gpt-bench-117b"', indent(ours, "        "))
    insert(copy / "llmb/submission/official.py", '    "gpt-bench-117b": Official(', second)
    insert(copy / "tests/unit/workloads/test_table.py", '    "gpt-bench-117b": ', count)
    assert "toy-decoder" in run(copy, "-m", "llmb", "workload", "list")
    tests = ("tests/unit/workloads/test_table.py", "tests/unit/submission/test_tokens_and_facts.py")
    run(copy, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests)


def test_a_number_format(copy: Path) -> None:
    (value,) = blocks("A number format")
    insert(copy / "llmb/formats.py", "    # The published recipe lacks 0.31", value)
    code = "from llmb.formats import class_of; print(class_of('MXFP5', None).bits)"
    assert run(copy, "-c", code).strip() == "5"
    run(copy, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/unit/test_formats.py")


@pytest.mark.skipif(not (ROOT / "submissions").is_dir(), reason="no bundle beside these tests")
def test_a_column_of_the_leaderboard(copy: Path) -> None:
    (column,) = blocks("A column of the leaderboard")
    insert(copy / "llmb/report/columns.py", '    LeaderboardColumn(\n        "Window",', column)
    bundle = str(committed.bundles("llama-45m")[0])
    report = ("-m", "llmb", "report", bundle)
    lines = list(csv.DictReader(io.StringIO(run(copy, *report, "--csv"))))
    assert float(lines[0]["host_memory_bytes"]) > 1e9
    assert "| Host memory |" in run(copy, *report, "--format", "markdown")
    page = run(copy, *report, "--format", "html")
    assert 'data-key="hostmemory"' in page
    assert re.search(r'<td data-title="Host memory" class="hostmemory figure">\s*[\d.]+ GB', page)
    assert '<option value="hostmemory">' in page


def test_a_rule_of_the_audit(copy: Path) -> None:
    (module,) = blocks("A rule of the audit")
    (copy / "llmb/audit/toy.py").write_text(module)
    rules = copy / "llmb/audit/rules.py"
    text = rules.read_text().replace(
        "    timed_step,\n    types,", "    timed_step,\n    toy,\n    types,"
    )
    rules.write_text(text.replace("    sources,\n)\n\n\ndef", "    sources,\n    toy,\n)\n\n\ndef"))
    run(copy, "-m", "tests.architecture.rules_page")
    assert "| [Z1](#z1) | note | the mode is a word |" in (copy / "docs/rules.md").read_text()
    code = "from llmb.audit.rules import RULES; print([rule.id for rule in RULES][-1])"
    assert run(copy, "-c", code).strip() == "Z1"
    run(
        copy,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "tests/architecture/test_documentation.py",
    )


#: Prints the checks of `llmb verify` that would refuse a bundle of the run.
CHECKED = """
import sys
from pathlib import Path
from llmb.records import members
from llmb.submission import layout
from tests.cheats.forging import checks
print(checks(dict(members.read_folder(Path(sys.argv[1]), layout.is_known))))
"""


def test_a_family_of_models(copy: Path) -> None:
    shape, model, family, line, workload, second, count = blocks("A family of models")
    for place, code in (("reference/toy_shape", shape), ("reference/toy", model)):
        (copy / f"llmb/{place}.py").write_text(code)
    (copy / "llmb/families/toy.py").write_text(family)
    table = copy / "llmb/workloads/table.py"
    insert(table, "from llmb.workloads.workload import", line)
    insert(table, '        Workload(\n            "gpt-bench-117b"', indent(workload, "        "))
    with (copy / "llmb/submission/official.py").open("a") as end:
        end.write(second)
    insert(copy / "tests/unit/workloads/test_table.py", '    "gpt-bench-117b": ', count)
    before = json.loads((copy / "llmb/records/references.json").read_text())["references"][-1]
    run(copy, "tests/versions.py")
    after = json.loads((copy / "llmb/records/references.json").read_text())["references"][-1]
    assert before["families"].items() < after["families"].items()  # none but the toy's is new
    tests = ("tests/unit/families", "tests/unit/submission/test_parameters.py")
    tests += ("tests/unit/workloads/test_table.py",)
    run(copy, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "toy", *tests)
    flags = ("--workload=toy-600k", "--preset=debug", "--output-dir=runs", "--quiet")
    run(copy, "-m", "llmb", "run", *flags)
    (directory,) = filter(Path.is_dir, (copy / "runs").iterdir())
    record = json.loads((directory / "record.json").read_text())
    assert record["audit"]["verdict"] == "CONSISTENT"
    assert record["workload"]["parameters"] == 606_656
    assert run(copy, "-c", CHECKED, str(directory)).strip() == "{}"
