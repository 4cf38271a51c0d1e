"""The changelog's fragments: a known type and one line each, and towncrier makes a section."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests import needs

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "changes"
TYPES = ("added", "changed", "fixed", "removed")
_NAME = re.compile(rf"\+[a-z0-9-]+\.({'|'.join(TYPES)})\.md")
#: Most characters of a line: about three lines of a terminal.
_MOST = 240

if not FOLDER.exists():
    pytest.skip("no changes beside these tests", allow_module_level=True)
FRAGMENTS = sorted(FOLDER.iterdir())


def test_every_fragment_has_a_type_and_one_line() -> None:
    wrong = [path.name for path in FRAGMENTS if not _NAME.fullmatch(path.name)]
    texts = {path.name: path.read_text() for path in FRAGMENTS}
    wrong += [name for name, text in texts.items() if not re.fullmatch(r"[^\n]+\.\n", text)]
    wrong += [name for name, text in texts.items() if len(text) > _MOST]
    assert wrong == []


def test_towncrier_makes_a_section_with_every_fragment_below_its_type() -> None:
    needs.package("towncrier")
    command = [sys.executable, "-m", "towncrier", "build", "--draft", "--version", "9.9"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("## 9.9 (")
    headings = re.findall(r"^### (\w+)$", done.stdout, re.MULTILINE)
    assert headings == [t.capitalize() for t in TYPES if any(FOLDER.glob(f"*.{t}.md"))]
    assert done.stdout.count("\n- ") == len(FRAGMENTS)
