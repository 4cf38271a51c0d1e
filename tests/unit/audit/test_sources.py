"""Rule S1: what ran is what is shown, and the reference is the pinned one."""

from __future__ import annotations

import pytest

from llmb.audit import sources
from llmb.records.evidence import PluginEvidence
from llmb.records.finding import Level, Status
from llmb.records.run_record import FileDigest
from tests.builders import digests

LOADED = digests({"fast/__init__.py": b"", "fast/kernel.py": b"1"})
PINNED = {"llama.py": "a" * 64, "data.py": "b" * 64}


def loaded(*files: FileDigest, run_otherwise: tuple[str, ...] = ()) -> PluginEvidence:
    return PluginEvidence(
        files=files, run_otherwise=run_otherwise, closed_components=(), declared_patches=()
    )


def test_a_file_whose_code_was_run_otherwise_fails_by_name() -> None:
    evidence = loaded(*LOADED, run_otherwise=(LOADED[0].path,))
    found = sources.finding(evidence, LOADED, PINNED, PINNED)
    assert found.status is Status.FAIL
    assert f"{LOADED[0].path} is not the code that was run" in found.message


def test_equal_digests_pass() -> None:
    found = sources.finding(loaded(*LOADED), tuple(reversed(LOADED)), PINNED, dict(PINNED))
    assert (found.id, found.level, found.status) == ("S1", Level.BLOCK, Status.PASS)
    assert found.measured == "2 plugin files, and the reference"


@pytest.mark.parametrize(
    "shown",
    [
        digests({"fast/__init__.py": b"", "fast/kernel.py": b"2"}),
        digests({"fast/__init__.py": b""}),
        (),
    ],
    ids=["edited", "hidden", "all hidden"],
)
def test_a_loaded_file_that_is_not_shown_as_it_was_fails_by_its_name(shown: tuple) -> None:
    found = sources.finding(loaded(*LOADED), shown, PINNED, PINNED)
    assert found.status is Status.FAIL
    assert "plugin file fast/kernel.py is not the one that was loaded" in found.message


def test_a_plugin_of_which_no_file_was_seen_fails() -> None:
    found = sources.finding(loaded(), (), PINNED, PINNED)
    assert found.status is Status.FAIL
    assert "no file of the plugin was seen loaded" in found.message


def test_a_file_that_is_shown_and_was_not_loaded_fails_by_its_name() -> None:
    shown = digests({"fast/__init__.py": b"", "fast/kernel.py": b"1", "fast/nice.py": b""})
    found = sources.finding(loaded(*LOADED), shown, PINNED, PINNED)
    assert found.status is Status.FAIL
    assert "fast/nice.py" in found.message


@pytest.mark.parametrize(
    ("reference", "name"),
    [
        ({**PINNED, "llama.py": "c" * 64}, "llama.py"),
        ({"llama.py": "a" * 64}, "data.py"),
        ({**PINNED, "sitecustomize.py": "d" * 64}, "sitecustomize.py"),
        ({}, "data.py"),
    ],
    ids=["edited", "removed", "added", "gone"],
)
def test_a_reference_that_is_not_the_pinned_one_fails_by_the_files_name(
    reference: dict[str, str], name: str
) -> None:
    found = sources.finding(loaded(*LOADED), LOADED, reference, PINNED)
    assert found.status is Status.FAIL
    assert f"reference/{name} is not the pinned file" in found.message
