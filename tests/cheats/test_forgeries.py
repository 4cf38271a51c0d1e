"""A forged record or a tampered bundle is refused by the check that is there for it."""

from __future__ import annotations

import io
import zipfile

import pytest
from safetensors.torch import load, save

from llmb.errors import BundleRefusedError
from llmb.records.bundle import from_files, read_bundle
from llmb.submission.manifest import zip_bytes
from tests.builders import with_manifest
from tests.cheats import forgeries, forging
from tests.cheats.conftest import files_of
from tests.cheats.forgeries import FORGERIES
from tests.cheats.forging import Forgery, Runs
from tests.e2e import harness


@pytest.fixture(scope="session")
def runs(honest_files, other_files, invalid_files, customised_files, toy_files):
    return Runs(honest_files, other_files, invalid_files, customised_files, toy_files)


def _case(forgery):
    mark = pytest.mark.xfail(reason=forgery.unseen, strict=True, raises=AssertionError)
    unseen = [mark] if forgery.unseen else []
    return pytest.param(forgery, id=forgery.name, marks=unseen)


@pytest.mark.parametrize("forgery", [_case(forgery) for forgery in FORGERIES])
def test_a_forgery_is_refused_by_the_check_that_is_there_for_it(runs, forgery: Forgery):
    refused = forging.checks(forgery.forge(runs))
    assert refused
    assert forgery.check in (None, *refused), refused


#: Forgeries of the two groups that take nothing but an honest run.
OF_ANY_RUN = (
    *("faster", "verdict_raised", "optimizer_evidence_edited", "file_added", "losses_changed"),
    *("fences_deleted", "fences_of_numbers", "tensor_of_no_parameter", "segment_too_long"),
    *("ranks_nobody_saw", "first_rules_claimed", "older_llmb_claimed"),
)


@pytest.mark.quick
@pytest.mark.parametrize("name", OF_ANY_RUN)
def test_a_forgery_of_any_run_is_refused_and_the_run_itself_is_not(tiny_run, name):
    honest = files_of(tiny_run)
    (forgery,) = (one for one in FORGERIES if one.name == name)
    assert forging.checks(honest) == {}
    assert forgery.check in forging.checks(forgery.forge(Runs(honest, {}, {}, {}, {})))


def test_bundles_of_the_runs_that_are_forged_are_sound(runs):
    for files in (runs.honest, runs.other, runs.invalid, runs.toy):
        assert forging.checks(files) == {}


def test_a_flipped_byte_under_the_old_manifest_is_refused(runs):
    whole = with_manifest(runs.honest)
    record = bytearray(whole["record.json"])
    record[100] ^= 1
    with pytest.raises(BundleRefusedError, match="not the file the manifest lists"):
        from_files(whole | {"record.json": bytes(record)})


@pytest.mark.parametrize("name", ["../evil.txt", "/tmp/evil.txt", "a\\..\\b", "RECORD.json"])
def test_a_zip_that_would_write_elsewhere_or_twice_is_refused(runs, tmp_path, name):
    packed = io.BytesIO(zip_bytes(with_manifest(runs.honest)))
    with zipfile.ZipFile(packed, "a") as archive:
        archive.writestr(name, b"evil")
    path = tmp_path / "bundle.zip"
    path.write_bytes(packed.getvalue())
    with pytest.raises(BundleRefusedError):
        read_bundle(path)


def test_a_record_rewritten_after_the_run_is_refused_by_the_command(runs, tmp_path):
    folder = tmp_path / "bundle"
    for name, content in with_manifest(forgeries.faster(runs)).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    ended = harness.call("verify", folder)
    assert ended.code == 6
    assert "recomputation" in ended.stdout


def test_a_bundle_of_calls_is_sound_until_their_logits_are_others(forward_files):
    ledger = "evidence/repeat-0/ledger.safetensors"
    assert forging.checks(forward_files) == {}
    arrays = load(forward_files[ledger])
    arrays["rows"][2, 5] *= 2
    assert "audit" in forging.checks(forward_files | {ledger: save(arrays)})
