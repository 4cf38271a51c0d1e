"""A changed reference has a version of its own: the table of references is held to the code."""

from __future__ import annotations

import ast
import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from llmb import __version__
from llmb.families import SHAPES
from llmb.records import references
from llmb.records.references import Reference, ReferenceTable
from llmb.reference import pins
from tests import versions
from tests.versions import COMMAND, FrozenError, family_digest, files_of, renewed, why_frozen

ROOT = Path(__file__).parents[2]
SUBMISSIONS = ROOT / "submissions"
NOW = versions.of_folder(__version__, SHAPES)


def test_the_last_row_is_this_version_with_this_reference() -> None:
    last = references.table().references[-1]
    message = f"the reference or the version has changed: {COMMAND} (docs/developing.md)"
    assert last == NOW, message
    assert pins.actual_digests() == pins.pinned_digests(), message


def test_a_changed_reference_without_a_new_version_is_refused_and_says_what_to_do() -> None:
    table = ReferenceTable((replace(NOW, digest="0" * 64),))
    with pytest.raises(FrozenError, match="raise __version__ in llmb/__init__.py.*" + COMMAND):
        renewed(table, NOW, frozen="it made a bundle")


def test_before_a_version_is_frozen_its_row_follows_the_reference() -> None:
    older, draft = replace(NOW, version="0.0.1"), replace(NOW, digest="0" * 64)
    assert renewed(ReferenceTable((older, draft)), NOW, None).references == (older, NOW)
    assert renewed(ReferenceTable((older,)), NOW, "a new version is not frozen").references == (
        older,
        NOW,
    )
    assert renewed(ReferenceTable((NOW,)), NOW, "nothing has changed").references == (NOW,)


def test_no_version_comes_back() -> None:
    newer = replace(NOW, version="99.0")
    with pytest.raises(FrozenError, match="raise __version__"):
        renewed(ReferenceTable((NOW, newer)), replace(NOW, digest="0" * 64), None)


def test_a_version_is_frozen_by_its_release_and_by_the_first_bundle_it_made(tmp_path: Path) -> None:
    changes, record = tmp_path / "CHANGELOG.md", tmp_path / "submissions" / "a" / "record.json"
    changes.write_text("# Changelog\n\n## 1.0 (2026-12-01)\n")
    assert "has the section" in (why_frozen("1.0", tmp_path) or "")
    assert why_frozen("1.0.1", tmp_path) is None
    changes.write_text("# Changelog\n\n## 1.0 (unreleased)\n")
    assert why_frozen("1.0", tmp_path) is None
    record.parent.mkdir(parents=True)
    record.write_text(json.dumps({"llmb_version": "0.9"}))
    assert why_frozen("1.0", tmp_path) is None
    record.write_text(json.dumps({"llmb_version": "1.0"}))
    assert why_frozen("1.0", tmp_path) == "submissions/a was made with it"


#: Of every llmb that has made a bundle; whoever drops a row makes bundles unreadable.
PUBLISHED = {
    "649af7d83608b5067109ea718ef3f0fce24e609314ada6221fbe096abf664886",
    "17021ed72954ec1e5343180f741ee8a83891feccf9231d52781d69cb14af9cf8",
    "9a74924b5f58bc0db703f4b7da265d7dca0265f69fba88acc2df1fdc9453cdf8",
}


def test_only_the_first_version_has_had_several_references_and_none_is_dropped() -> None:
    rows = references.table().references
    first = {row.digest for row in rows if row.version == "0.1.0"}
    assert first == PUBLISHED
    later = [row.version for row in rows if row.version != "0.1.0"]
    assert len(set(later)) == len(later)
    assert all(re.fullmatch(r"\d+\.\d+\.\d+", row.version) for row in rows)


def test_every_digest_is_a_sha256_and_every_confirmed_change_is_one_and_has_its_reason() -> None:
    table = references.table()
    digests = [value for row in table.references for value in (row.digest, *row.families.values())]
    assert all(re.fullmatch(r"[0-9a-f]{64}", value) for value in digests)
    for line in table.confirmed:
        codes = {row.families.get(line.family) for row in table.references}
        assert {line.older, line.newer} <= codes
        assert line.older != line.newer
        assert len(line.reason.split()) > 5


@pytest.mark.skipif(not SUBMISSIONS.is_dir(), reason="these tests came without the submissions")
def test_every_bundle_beside_these_tests_has_a_row_and_is_run_by_this_llmb() -> None:
    table, records = references.table(), sorted(SUBMISSIONS.rglob("record.json"))
    assert records
    for path in records:
        record = json.loads(path.read_bytes())
        digest, family = record["reference_digest"], record["workload"].get("family", "llama")
        assert table.has(record["llmb_version"], digest), path
        assert table.reasons(family, digest, NOW.digest) is not None, (
            f"{path.parent.name}: its {family} code has changed: llmb reproduce refuses it. "
            "No number changed: confirm it; no step runs the file: name it in tests/versions.py "
            "(docs/developing.md). A true change: leave its bundles out here, and say so in an ADR"
        )


# -- which code a family's digest covers ----------------------------------------------------------


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    folder = tmp_path / "reference"
    shutil.copytree(pins.FOLDER, folder, ignore=shutil.ignore_patterns("__pycache__"))
    return folder


def changed_families(folder: Path) -> set[str]:
    return {family for family in SHAPES if family_digest(family, folder) != NOW.families[family]}


@pytest.mark.parametrize(
    ("file", "families"),
    [
        ("llama.py", {"llama", "llama-ungated", "qwen3", "qwen3-tied"}),
        ("gpt2.py", {"gpt2"}),
        ("bert.py", {"bert"}),
        ("qwen3.py", {"qwen3", "qwen3-tied"}),
        ("qwen3_shape.py", {"qwen3", "qwen3-tied"}),
        ("data.py", set(SHAPES)),
        ("optimizer.py", set(SHAPES)),
        ("formats.py", set()),
        ("elements.py", set()),
        ("pins.py", set()),
    ],
)
def test_a_changed_file_changes_the_families_that_run_it(
    copied: Path, file: str, families: set[str]
) -> None:
    with (copied / file).open("a") as end:
        end.write("\nMORE = 1\n")
    assert changed_families(copied) == families
    assert versions.of_folder("1", (), copied).digest != NOW.digest


def test_a_new_file_counts_for_every_family(copied: Path) -> None:
    (copied / "mamba.py").write_text("MORE = 1\n")
    assert changed_families(copied) == set(SHAPES)


@pytest.mark.parametrize(
    ("old", "new", "counts"),
    [
        ('"""The training losses', '"""All training losses', False),
        ("IGNORED = -100", "IGNORED = -100  # as torch has it", False),
        ("IGNORED = -100", "IGNORED = -101", True),
        ("IGNORED = -100", "IGNORED = -100.0", True),
        ("labels[:, 1:]", "labels[:, 2:]", True),
        ("F.pad", "F.gelu", True),
    ],
)
def test_comments_and_docstrings_do_not_count_and_every_number_and_name_does(
    copied: Path, old: str, new: str, counts: bool
) -> None:
    text = (copied / "loss.py").read_text()
    assert old in text
    (copied / "loss.py").write_text(text.replace(old, new))
    assert changed_families(copied) == (set(SHAPES) if counts else set())


@pytest.mark.parametrize("family", SHAPES)
def test_no_file_of_a_family_imports_one_that_its_digest_leaves_out(family: str) -> None:
    covered = {path.name for path in files_of(family)}
    for path in files_of(family):
        imported = {
            f"{node.module}.py"
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.ImportFrom) and node.level
        }
        assert imported <= covered, path.name


def test_the_family_of_a_shape_has_its_model_in_its_own_file() -> None:
    """Nothing shared names a model: models.py asks the shape (docs/adr/0064)."""
    for family, shape in SHAPES.items():
        module, _, name = shape.model.partition(".")
        assert module == versions.own_name(family)
        own = pins.FOLDER / f"{module}.py"
        assert name in {
            n.name for n in ast.parse(own.read_text()).body if isinstance(n, ast.ClassDef)
        }


def test_a_family_in_files_of_its_own_changes_no_other_familys_digest(copied: Path) -> None:
    for name in ("qwen3.py", "qwen3_shape.py"):
        (copied / name).unlink()
    assert changed_families(copied) == {"qwen3", "qwen3-tied"}


def test_the_command_writes_both_files_and_changes_nothing_the_second_time(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    known = references.table()  # read before its file is another
    monkeypatch.setattr(pins, "PINS_FILE", tmp_path / "PINS.sha256")
    monkeypatch.setattr(references, "TABLE", tmp_path / "references.json")
    assert versions.main() == 0
    assert (tmp_path / "PINS.sha256").read_bytes() == (pins.FOLDER / "PINS.sha256").read_bytes()
    written = (tmp_path / "references.json").read_text(encoding="utf-8")
    assert references.parse(written) == known
    assert f"llmb {__version__}: reference {NOW.digest[:12]}" in capsys.readouterr().out


def test_the_command_leaves_both_files_alone_where_the_version_is_frozen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    draft = ReferenceTable((replace(NOW, digest="0" * 64),))
    monkeypatch.setattr(references, "table", lambda: draft)
    monkeypatch.setattr(versions, "why_frozen", lambda version: "it made a bundle")
    monkeypatch.setattr(pins, "PINS_FILE", tmp_path / "PINS.sha256")
    assert versions.main() == 1
    assert "is frozen (it made a bundle)" in capsys.readouterr().err
    assert not (tmp_path / "PINS.sha256").exists()


def test_a_row_of_another_reference_is_another_row() -> None:
    assert Reference("1", "a", {"llama": "A"}) != Reference("1", "a", {"llama": "B"})
