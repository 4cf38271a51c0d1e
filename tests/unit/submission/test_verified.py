"""Results of verification are kept by everything that they depend on, and never in the way."""

from __future__ import annotations

import os
import subprocess
import sys
from multiprocessing.pool import ThreadPool
from pathlib import Path

import pytest

from llmb.records.bundle import from_files
from llmb.submission import verified
from llmb.submission.signatures import sign
from llmb.submission.verified import Cache
from tests import builders, needs
from tests.builders import with_manifest


def bundle_of(run=0, **files):
    record = builders.make_record(repeats=1, run_id=f"{run:032x}")
    return from_files(with_manifest(builders.run_files(record) | files))


@pytest.fixture(scope="module")
def bundle():
    return bundle_of()


@pytest.fixture
def counted(monkeypatch):
    """Count how often a bundle is verified."""
    calls = []

    def verify(bundle):
        calls.append(bundle.bundle_id)
        return real(bundle)

    real = verified.verify_bundle
    monkeypatch.setattr(verified, "verify_bundle", verify)
    return calls


def test_a_bundle_is_verified_once_and_the_result_is_the_same(tmp_path, bundle, counted):
    first = Cache(tmp_path).verified(bundle)
    again = Cache(tmp_path).verified(bundle)
    assert first == again == verified.verified(bundle)
    assert len(counted) == 2, "once for the cache, and once without it"
    assert first.fault is None
    assert first.content.run_id == "0" * 32


def test_what_fails_is_kept_too(tmp_path, counted):
    bad = bundle_of(**{"audit.json": b"{}"})
    assert Cache(tmp_path).verified(bad).fault == "copies: audit.json is not the one in the record"
    assert Cache(tmp_path).verified(bad).fault == "copies: audit.json is not the one in the record"
    assert len(counted) == 1


def test_another_bundle_llmb_or_signature_is_another_result(tmp_path, bundle, counted, monkeypatch):
    cache = Cache(tmp_path / "cache")
    cache.verified(bundle)
    cache.verified(bundle_of(1))
    assert len(counted) == 2
    monkeypatch.setattr(verified, "_verifier", lambda: "another llmb")
    cache.verified(bundle)
    assert len(counted) == 3
    needs.program("ssh-keygen")
    key = tmp_path / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True)
    signed = sign(bundle, key)
    assert signed.bundle_id == bundle.bundle_id
    assert len(cache.verified(signed).signers) == 1
    assert len(counted) == 4
    assert cache.verified(signed).signers == cache.verified(signed).signers
    assert len(counted) == 4


def test_a_signature_that_nobody_could_check_is_looked_at_again(tmp_path, bundle, monkeypatch):
    needs.program("ssh-keygen")
    key = tmp_path / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True)
    signed, cache = sign(bundle, key), Cache(tmp_path / "cache")
    path = os.environ["PATH"]
    monkeypatch.setenv("PATH", "")
    assert cache.verified(signed).signers == frozenset()
    monkeypatch.setenv("PATH", path)
    assert len(cache.verified(signed).signers) == 1


def test_the_digest_of_the_verifier_is_that_of_every_file_of_llmb(tmp_path):
    """A copy of llmb with one changed rule has another digest, and the same version."""
    package = Path(verified.llmb.__file__).parent
    copy = tmp_path / "llmb"
    subprocess.run(["cp", "-r", str(package), str(copy)], check=True)
    code = "from llmb.submission.verified import _verifier; print(_verifier())"

    def digest():
        env = {**os.environ, "PYTHONPATH": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"}
        words = [sys.executable, "-P", "-c", code]
        return subprocess.run(words, env=env, check=True, capture_output=True, text=True).stdout

    same = digest()
    assert same.strip() == verified._verifier()
    with (copy / "audit" / "rules.py").open("a") as file:
        file.write("# looser\n")
    assert digest() != same


@pytest.mark.parametrize("text", [b"", b"{}", b"\xff", b'{"fault": null}', b"x" * 2**17])
def test_an_entry_that_cannot_be_read_is_made_again(tmp_path, bundle, counted, text):
    right = Cache(tmp_path).verified(bundle)
    (entry,) = tmp_path.iterdir()
    entry.write_bytes(text)
    assert Cache(tmp_path).verified(bundle) == right
    assert Cache(tmp_path).verified(bundle) == right
    assert len(counted) == 2


def test_a_folder_that_cannot_be_written_is_no_error(tmp_path, bundle):
    (tmp_path / "file").write_text("in the way")
    for folder in (None, tmp_path / "file", tmp_path / "file" / "below", Path("/proc/none")):
        assert Cache(folder).verified(bundle).fault is None


def test_many_writers_leave_whole_results_and_nothing_else(tmp_path, bundle):
    bundles = [bundle, *(bundle_of(n) for n in (1, 2))]
    with ThreadPool(4) as pool:
        pool.map(lambda one: Cache(tmp_path).verified(one), bundles * 3)
    entries = sorted(tmp_path.iterdir())
    assert [entry.suffix for entry in entries] == [".json"] * 3
    for entry in entries:
        verified.Verified.model_validate_json(entry.read_bytes())


def test_the_oldest_go_where_there_are_too_many(tmp_path, bundle, monkeypatch):
    for n in range(10):
        (tmp_path / f"{n}.json").write_bytes(b"x" * 1000)
        os.utime(tmp_path / f"{n}.json", (n, n))
    monkeypatch.setattr(verified, "MAX_CACHE_BYTES", 9000)
    Cache(tmp_path).verified(bundle)
    left = {entry.name for entry in tmp_path.iterdir() if len(entry.name) == len("0.json")}
    assert left == {"6.json", "7.json", "8.json", "9.json"}
    assert len(list(tmp_path.iterdir())) == 5


def test_a_result_that_is_too_long_is_not_kept(tmp_path, bundle, monkeypatch):
    monkeypatch.setattr(verified, "MAX_RESULT_BYTES", 10)
    Cache(tmp_path).verified(bundle)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("base", "home", "folder"),
    [
        ("/var/caches", "/home/a", Path("/var/caches/llmb/verified")),
        ("relative", "/home/a", Path("/home/a/.cache/llmb/verified")),
        ("", "/home/a", Path("/home/a/.cache/llmb/verified")),
    ],
)
def test_results_lie_where_caches_of_the_user_do(base, home, folder, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", base)
    monkeypatch.setenv("HOME", home)
    assert verified.usual_folder() == folder
