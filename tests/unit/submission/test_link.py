"""A run that repeats a bundle is packaged with its link, and verified with it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from llmb.errors import BundleRefusedError
from llmb.records.bundle import from_files
from llmb.records.canonical import pretty_bytes
from llmb.records.run_record import RunRecord
from llmb.submission.package import package
from llmb.submission.verify import VerifyCheck, verify, verify_bundle
from tests import builders
from tests.builders import with_manifest
from tests.unit.builders_reproduction import ORIGINAL_ID, linked

ORIGINAL = builders.make_record(repeats=1)
AGAIN = linked(builders.make_record(repeats=1, run_id="f" * 32), ORIGINAL)


def checks(record: RunRecord) -> dict[str, VerifyCheck]:
    bundle = from_files(with_manifest(builders.run_files(record)))
    return {check.name: check for check in verify_bundle(bundle).checks}


def test_a_sound_link_is_named_with_what_it_says() -> None:
    found = checks(AGAIN)
    assert all(check.ok for check in found.values())
    assert ORIGINAL_ID in found["reproduction"].message
    assert "+0.00 %" in found["reproduction"].message


def test_a_run_that_repeats_nothing_has_no_such_check() -> None:
    assert "reproduction" not in checks(ORIGINAL)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"difference_percent": 1.0}, "difference_percent is 1.0"),
        ({"tokens_per_second": 1.0, "ci95": None}, "difference_percent"),
        ({"ci95": [0.0, 1.0]}, "an interval around"),
        ({"ci95": [1e9, 1e9 + 1]}, "an interval around"),
        ({"run_id": "f" * 32}, "the run of another record"),
        ({"tokens_per_second": 5e-324, "ci95": None}, "difference_percent"),
    ],
)
def test_a_link_that_its_own_record_contradicts_is_found(
    change: dict[str, Any], words: str
) -> None:
    forged = builders.edited(AGAIN, lambda data: data["reproduction_of"].update(change))
    found = checks(forged)
    assert [name for name, check in found.items() if not check.ok] == ["reproduction"]
    assert words in found["reproduction"].message


@pytest.mark.parametrize(
    "change",
    [
        {"bundle_id": "A" * 64},
        {"bundle_id": "a" * 63},
        {"bundle_id": "../../etc/passwd"},
        {"run_id": ""},
        {"tokens_per_second": 0.0},
        {"tokens_per_second": -1.0},
        {"tokens_per_second": "1000"},
        {"difference_percent": None},
        {"ci95": [1.0]},
        {"more": 1},
    ],
)
def test_a_link_that_is_none_is_no_record(change: dict[str, Any]) -> None:
    files = builders.run_files(AGAIN)
    data = json.loads(files["record.json"])
    data["reproduction_of"].update(change)
    files["record.json"] = json.dumps(data).encode()
    with pytest.raises(BundleRefusedError, match="reproduction_of"):
        verify_bundle(from_files(with_manifest(files)))


def test_a_record_from_before_there_were_links_is_still_read(tmp_path: Any) -> None:
    files = builders.run_files(ORIGINAL)
    data = json.loads(files["record.json"])
    assert data.pop("reproduction_of") is None
    files["record.json"] = json.dumps(data).encode()
    assert all(c.ok for c in verify_bundle(from_files(with_manifest(files))).checks)


def test_packaging_keeps_the_link(tmp_path: Any) -> None:
    run = builders.write(tmp_path / "run", builders.run_files(AGAIN))
    (path,) = package([run], builders.WHOSE, tmp_path / "submissions")
    assert verify(path).record.reproduction_of == AGAIN.reproduction_of


def test_a_run_whose_link_is_wrong_is_not_packaged(tmp_path: Any) -> None:
    def lie(data: dict[str, Any]) -> None:
        data["reproduction_of"]["difference_percent"] = 0.5

    forged = builders.edited(AGAIN, lie)
    run = builders.write(tmp_path / "run", builders.run_files(forged))
    with pytest.raises(BundleRefusedError, match=r"reproduction: reproduction_of\.difference"):
        package([run], builders.WHOSE, tmp_path / "submissions")


def test_a_record_that_claims_reproductions_of_itself_is_refused() -> None:
    def claim(data: dict[str, Any]) -> None:
        data["audit"]["reproductions"] = [
            {
                "bundle_id": "b" * 64,
                "run_id": "1" * 32,
                "tokens_per_second": 1.0,
                "difference_percent": 0.0,
            }
        ]

    forged = builders.edited(ORIGINAL, claim)
    files = builders.run_files(ORIGINAL) | {
        "record.json": pretty_bytes(forged),
        "audit.json": pretty_bytes(forged.audit),
    }
    found = verify_bundle(from_files(with_manifest(files))).checks
    (wrong,) = [check for check in found if not check.ok]
    assert "bundles that link to it, never from itself" in wrong.message
