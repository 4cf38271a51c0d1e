"""The reference on disk is the pinned one, every file of it, and it loads alone."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from llmb.reference import pins

ROOT = pins.FOLDER.parents[1]


def loaded_by(statements: str, after: str = "pass") -> list[str]:
    """Return the modules that a fresh interpreter loads for ``statements``, ``after`` others."""
    code = f"""{after}
import json, sys
before = set(sys.modules)
{statements}
print(json.dumps(sorted(set(sys.modules) - before)))
"""
    command = [sys.executable, "-c", code]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    found: list[str] = json.loads(result.stdout)
    return found


@pytest.fixture
def copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "reference"
    shutil.copytree(pins.FOLDER, folder, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(pins, "FOLDER", folder)
    return folder


def test_the_reference_is_what_its_pins_say() -> None:
    assert pins.actual_digests() == pins.pinned_digests()


def test_every_python_file_at_any_depth_is_pinned() -> None:
    files = {str(file.relative_to(pins.FOLDER)) for file in pins.FOLDER.rglob("*.py")}
    assert files == set(pins.pinned_digests())


def test_nothing_else_that_python_would_import_lies_beside_the_pinned_files() -> None:
    others = [p for p in pins.FOLDER.rglob("*") if p.is_file() and "__pycache__" not in p.parts]
    assert {p.name for p in others if p.suffix != ".py"} == {pins.PINS_FILE.name}


def test_a_digest_is_the_sha256_of_the_files_bytes() -> None:
    expected = hashlib.sha256((pins.FOLDER / "llama.py").read_bytes()).hexdigest()
    assert pins.actual_digests()["llama.py"] == expected


def test_one_changed_byte_in_any_file_changes_the_reference_digest(copied: Path) -> None:
    original = pins.actual_digests()
    for name in original:
        content = (copied / name).read_bytes()
        (copied / name).write_bytes(content[:-1] + b" ")
        changed = pins.actual_digests()
        assert {key for key in original if changed[key] != original[key]} == {name}
        assert pins.reference_digest(changed) != pins.reference_digest(original)
        (copied / name).write_bytes(content)
    assert pins.actual_digests() == original


def test_an_added_and_a_removed_file_change_the_reference_digest(copied: Path) -> None:
    original = pins.reference_digest(pins.actual_digests())
    (copied / "extra.py").touch()
    added = pins.reference_digest(pins.actual_digests())
    (copied / "extra.py").unlink()
    (copied / "data.py").unlink()
    removed = pins.reference_digest(pins.actual_digests())
    assert len({original, added, removed}) == 3


def test_a_renamed_file_changes_the_reference_digest() -> None:
    digest = "0" * 64
    assert pins.reference_digest({"a.py": digest}) != pins.reference_digest({"b.py": digest})


def test_the_reference_digest_does_not_depend_on_the_order_of_files() -> None:
    digests = pins.pinned_digests()
    backwards = dict(reversed(digests.items()))
    assert pins.reference_digest(backwards) == pins.reference_digest(digests)


def test_the_reference_digest_is_the_sha256_of_the_pins_file() -> None:
    expected = hashlib.sha256(pins.PINS_FILE.read_bytes()).hexdigest()
    assert pins.reference_digest(pins.pinned_digests()) == expected


def test_the_whole_reference_loads_with_nothing_but_torch() -> None:
    names = [file.stem for file in pins.FOLDER.glob("*.py") if file.stem != "__init__"]
    everything = "\n".join(f"import llmb.reference.{name}" for name in names)
    found = loaded_by(everything, after="import torch")
    foreign = {name.partition(".")[0] for name in found} - set(sys.stdlib_module_names)
    assert foreign == {"llmb"}
    ours = {name for name in found if name.startswith("llmb.")}
    assert {name for name in ours if not name.startswith("llmb.reference")} == set()


@pytest.mark.parametrize("name", ["shapes", "pins"])
def test_shapes_and_pins_load_without_torch(name: str) -> None:
    found = loaded_by(f"import llmb.reference.{name}")
    assert {name.partition(".")[0] for name in found} - set(sys.stdlib_module_names) == {"llmb"}
