"""Bundles of earlier versions of llmb still verify, with the words of their own version."""

from __future__ import annotations

from pathlib import Path

import pytest

from llmb import __version__
from llmb.records import references
from llmb.records.bundle import read_bundle
from llmb.submission.verify import verify_bundle
from tests.committed import OLDER

BUNDLES = sorted(path.parent for path in OLDER.glob("*/MANIFEST.json"))


@pytest.mark.parametrize("path", BUNDLES, ids=lambda path: path.name)
def test_a_bundle_of_an_older_version_verifies(path: Path) -> None:
    found = verify_bundle(read_bundle(path))
    assert [check.message for check in found.checks if not check.ok] == []
    assert path.name == f"llmb-{found.record.llmb_version}"


def test_there_is_a_bundle_of_each_earlier_version() -> None:
    if not BUNDLES:
        pytest.skip("an sdist has no older bundles")
    versions = {one.version for one in references.table().references}
    assert {path.name for path in BUNDLES} == {f"llmb-{one}" for one in versions - {__version__}}
