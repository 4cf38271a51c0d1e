"""What is here is found without loading anything of a bundle, and what is in the way is said."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from llmb.errors import LlmbError, NotEnoughMemoryError, UnavailableError
from llmb.plugin import discovery
from llmb.records.run_record import RunRecord
from llmb.reproduction import here, request_again
from llmb.reproduction.here import Here, explained
from tests import builders
from tests.unit.builders_runtime import install

RECORD = builders.make_record(repeats=1)
SOURCES = {f"llmb_fast/{path}": data.decode() for path, data in builders.PLUGIN_FILES.items()}
#: As a worker lists them: relative to the folder that the package is in.
SHOWN = {path: text.encode() for path, text in SOURCES.items()}


def look(record: RunRecord = RECORD) -> Here:
    return here.look(record, request_again.request_of(record))


def reason(found: Here) -> tuple[type[LlmbError], str]:
    assert found.blocked is not None
    return type(found.blocked), str(found.blocked)


def test_a_missing_plugin_is_in_the_way_with_what_to_type() -> None:
    found = look()
    expected = "plugin 'fast' is not installed: install llmb-fast 1.0 as its vendor says"
    assert reason(found) == (UnavailableError, expected)
    assert found.conditions.plugin is None
    assert found.conditions.hardware is None
    assert found.conditions.system.torch == discovery.version_of("torch")


def test_a_missing_plugin_with_an_odd_name_gets_no_command() -> None:
    odd = RECORD.plugin.model_copy(update={"distribution": "x;ls"})
    _, text = reason(look(RECORD.model_copy(update={"plugin": odd})))
    assert "pip" not in text
    assert "'x;ls' '1.0'" in text


def test_a_plugin_that_the_environment_leaves_out_is_not_called_missing(
    site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(site, "llmb-fast", {"fast": "llmb_fast"}, SOURCES)
    monkeypatch.setenv(discovery.LOAD_PLUGINS, "")
    kind, text = reason(look())
    assert kind is UnavailableError
    assert "LLMB_LOAD_PLUGINS='' leaves it out" in text


Digests = Callable[[tuple[str, ...]], dict[str, str]]


@pytest.fixture
def digests(site: Path) -> Digests:
    """Give the digests of files of an installed plugin, whose code raises when it is loaded."""
    raising = {path: text + "raise SystemExit\n" for path, text in SOURCES.items()}
    install(site, "llmb-fast", {"fast": "llmb_fast"}, raising)
    (site / "secret.txt").write_text("secret")
    module = discovery.find("fast").module
    return lambda paths: here._digests(module, paths)


def test_files_are_compared_by_digest_and_never_loaded(digests: Digests) -> None:
    (first, second) = sorted(SOURCES)
    raising = {path: text.encode() + b"raise SystemExit\n" for path, text in SOURCES.items()}
    expected = {file.path: file.sha256 for file in builders.digests(raising)}
    assert digests((first, second)) == expected


def test_a_path_of_a_bundle_leads_to_nothing_but_files_of_the_package(digests: Digests) -> None:
    outside = ("../../etc/passwd", "/etc/passwd", "llmb_fast", "llmb_fast/none.py", "")
    assert digests(outside) == {}


def test_too_little_memory_says_that_the_batch_size_is_the_bundles() -> None:
    error = explained(NotEnoughMemoryError("it needs 9 GB, 8 are free"), RECORD)
    assert error.exit_code == 4
    assert "it needs 9 GB, 8 are free; a reproduction has the batch size of the bundle, 8" in str(
        error
    )
    other = UnavailableError("else")
    assert explained(other, RECORD) is other
