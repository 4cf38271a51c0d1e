"""Signatures by the real ssh-keygen: who signed what, and what does not count as a signature."""

from __future__ import annotations

import json
import os
import shutil
import subprocess

import pytest

from llmb.errors import BundleRefusedError, UnavailableError, UsageError
from llmb.records.bundle import from_files, read_bundle
from llmb.submission import package, signatures
from llmb.submission.verify import verify, verify_bundle
from tests import builders, needs, patience
from tests.builders import WHOSE, with_manifest


@pytest.fixture(scope="module", autouse=True)
def signing():
    needs.program("ssh-keygen")


def make_key(folder, name, passphrase="", kind="ed25519"):
    key = folder / name
    command = ["ssh-keygen", "-q", "-t", kind, "-N", passphrase, "-C", name, "-f", str(key)]
    subprocess.run(command, check=True)
    return key


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    folder = tmp_path_factory.mktemp("keys")
    return {
        "acme": make_key(folder, "acme"),
        "other": make_key(folder, "other"),
        "locked": make_key(folder, "locked", "secret"),
        "rsa": make_key(folder, "rsa", kind="rsa"),
        "ecdsa": make_key(folder, "ecdsa", kind="ecdsa"),
    }


@pytest.fixture(scope="module")
def record():
    return builders.make_record(repeats=1)


@pytest.fixture(scope="module")
def bundle(record):
    return from_files(builders.bundle_files(record))


@pytest.fixture
def allow(tmp_path, keys):
    def write(*names, options="", principal="{}"):
        path = tmp_path / "allowed_signers"
        lines = [
            " ".join(
                part
                for part in (
                    principal.format(name),
                    options,
                    keys[name].with_suffix(".pub").read_text(),
                )
                if part
            )
            for name in names
        ]
        path.write_text("# who may sign\n\n" + "".join(lines))
        return path

    return write


def check(bundle, allowed=None):
    """Return whether the signatures of ``bundle`` pass, and what is said of them."""
    checks = verify_bundle(bundle, allowed).checks
    (found,) = [one for one in checks if one.name == "signatures"]
    return found.ok, found.message


def fingerprint(key):
    shown = subprocess.run(["ssh-keygen", "-l", "-f", key], capture_output=True, check=True)
    return shown.stdout.decode().split()[1]


@pytest.mark.parametrize("name", ["acme", "rsa", "ecdsa"])
def test_a_signature_tells_its_key_and_not_whose_it_is(bundle, keys, name):
    signed = signatures.sign(bundle, keys[name])
    (found,) = signatures.signers(signed)
    assert found.fingerprint == fingerprint(keys[name])
    assert (found.principal, found.doubt) == (None, None)
    ok, message = check(signed)
    assert ok
    assert found.fingerprint in message
    assert "whose keys these are, --signers FILE would say" in message
    assert signed.bundle_id == bundle.bundle_id, "a signature is no part of what is signed"


def test_an_allowed_signer_is_named(bundle, keys, allow):
    signed = signatures.sign(bundle, keys["acme"])
    (found,) = signatures.signers(signed, allow("other", "acme"))
    assert found.principal == "acme"
    ok, message = check(signed, allow("other", "acme"))
    assert ok
    assert f"signed by 'acme' (ED25519 {found.fingerprint})" in message


def test_a_key_for_this_namespace_is_allowed_and_one_for_another_is_not(bundle, keys, allow):
    signed = signatures.sign(bundle, keys["acme"])
    assert check(signed, allow("acme", options='namespaces="llmb-bundle"'))[0]
    ok, message = check(signed, allow("acme", options='namespaces="git"'))
    assert not ok
    assert 'not permitted for use in signature namespace "llmb-bundle"' in message


def test_a_key_whose_time_is_over_is_not_allowed(bundle, keys, allow):
    signed = signatures.sign(bundle, keys["acme"])
    ok, message = check(signed, allow("acme", options='valid-before="20200101"'))
    assert not ok
    assert "not signed by 'acme'" in message


def test_an_unknown_key_is_refused_where_a_signer_is_asked_for(bundle, keys, allow):
    signed = signatures.sign(bundle, keys["acme"])
    ok, message = check(signed, allow("other"))
    assert not ok
    assert fingerprint(keys["acme"]) in message
    assert "does not list this key" in message


def test_an_unsigned_bundle_is_refused_where_a_signer_is_asked_for(bundle, allow):
    assert check(bundle) == (True, "none: nobody vouches for this bundle")
    ok, message = check(bundle, allow("acme"))
    assert not ok
    assert "not signed" in message


def test_one_allowed_signer_among_several_is_enough_and_the_others_are_counted(bundle, keys, allow):
    signed = signatures.sign(signatures.sign(bundle, keys["acme"]), keys["other"])
    assert {one.fingerprint for one in signatures.signers(signed)} == {
        fingerprint(keys["acme"]),
        fingerprint(keys["other"]),
    }
    ok, message = check(signed, allow("acme"))
    assert ok
    assert message.endswith("; 1 by others")


def test_who_may_sign_bundles_of_their_own_signs_no_others(bundle, keys, allow):
    signed = signatures.sign(bundle, keys["other"])
    ok, message = check(signed, allow("acme", "other"))
    assert not ok
    assert "not signed by 'acme'" in message
    assert "of 'other'" in message


def test_a_key_of_several_submitters_signs_for_each(bundle, keys, allow):
    signed = signatures.sign(bundle, keys["acme"])
    several = allow("acme", principal="aaa,{},zzz")
    assert signatures.signers(signed, several)[0].principal == "acme"
    assert check(signed, several)[0]


@pytest.mark.parametrize("principal", ["*", "a*", "acm?", "!other,*"])
def test_a_file_that_lets_anybody_sign_is_refused(bundle, keys, allow, principal):
    signed = signatures.sign(bundle, keys["acme"])
    with pytest.raises(UsageError, match="line 3 is for whoever fits"):
        check(signed, allow("acme", principal=principal))


def test_a_short_rsa_key_is_refused_when_it_signs_and_when_it_has_signed(bundle, tmp_path, keys):
    weak = tmp_path / "weak"
    command = ["ssh-keygen", "-q", "-t", "rsa", "-b", "2048", "-N", "", "-f", str(weak)]
    subprocess.run(command, check=True)
    with pytest.raises(BundleRefusedError, match="by an RSA key of 2048 bits"):
        signatures.sign(bundle, weak)
    armour = made_elsewhere(bundle, weak, "llmb-bundle")
    ok, message = check(from_files({**bundle.files, "SIGNATURES/weak.sig": armour}))
    assert not ok
    assert "an RSA key of 2048 bits" in message


def test_a_bundle_that_does_not_say_whose_it_is_has_no_owner_who_could_sign(record, keys, allow):
    older = from_files(builders.older_manifest(builders.run_files(record)))
    signed = signatures.sign(older, keys["acme"])
    ok, message = check(signed, allow("acme"))
    assert not ok
    assert "does not say whose it is" in message


def test_the_same_key_signs_once(bundle, keys):
    signed = signatures.sign(bundle, keys["acme"])
    assert signatures.sign(signed, keys["acme"]) == signed


def moved(signed, files):
    """Return ``files`` with the signatures of ``signed``."""
    return from_files({**files, **signed.signatures})


def test_a_signature_of_another_bundle_is_refused_with_and_without_signers(
    bundle, record, keys, allow
):
    signed = signatures.sign(bundle, keys["acme"])
    other = with_manifest(builders.run_files(record) | {"sources.diff": b"another\n"})
    for allowed in (None, allow("acme")):
        ok, message = check(moved(signed, other), allowed)
        assert not ok
        assert "does not sign this manifest" in message


def made_elsewhere(bundle, key, namespace):
    command = ["ssh-keygen", "-Y", "sign", "-n", namespace, "-f", str(key)]
    done = subprocess.run(command, input=bundle.manifest, capture_output=True, check=True)
    return done.stdout


def test_a_signature_made_by_hand_counts(bundle, keys):
    armour = made_elsewhere(bundle, keys["acme"], "llmb-bundle")
    (found,) = signatures.signers(from_files({**bundle.files, "SIGNATURES/acme.sig": armour}))
    assert (found.name, found.fingerprint) == ("SIGNATURES/acme.sig", fingerprint(keys["acme"]))


def test_a_signature_made_for_something_else_is_refused(bundle, keys):
    armour = made_elsewhere(bundle, keys["acme"], "file")
    with pytest.raises(BundleRefusedError, match="namespace does not match"):
        signatures.signers(from_files({**bundle.files, "SIGNATURES/acme.sig": armour}))


def test_every_kind_of_tampering_with_a_signature_is_refused(bundle, keys):
    armour = signatures.sign(bundle, keys["acme"]).signatures
    (content,) = armour.values()
    lines = content.split(b"\n")
    for changed in (
        content.replace(b"\n", b"\r\n"),
        b" " + content,
        content + b"\n",
        b"\n".join([*lines[:2], *lines[3:]]),
        content.replace(lines[2][:4], b"AAAA", 1),
        content.replace(b"U1NIU0lH", b"U1NIU0lI", 1),
    ):
        assert changed != content
        with pytest.raises(BundleRefusedError, match=r"SIGNATURES/a\.sig"):
            signatures.signers(from_files({**bundle.files, "SIGNATURES/a.sig": changed}))


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "lists nobody"),
        (b"# nobody\n", "lists nobody"),
        (b"acme\n", "line 1 is not of an allowed signer: missing key"),
        (b"acme ssh-ed25519 AAAA\n", "line 1 is not of an allowed signer"),
        (b"x" * 2**21, "more than"),
    ],
)
def test_a_file_that_lists_no_signers_is_a_usage_error(bundle, keys, tmp_path, content, reason):
    path = tmp_path / "signers"
    path.write_bytes(content)
    signed = signatures.sign(bundle, keys["acme"])
    with pytest.raises(UsageError, match=reason):
        verify_bundle(signed, path)


def test_a_file_of_signers_that_is_not_there_is_a_usage_error(bundle, tmp_path):
    with pytest.raises(UsageError, match="--signers: cannot read"):
        verify_bundle(bundle, tmp_path / "nobody")


def test_without_ssh_keygen_a_signature_is_said_to_be_unchecked_and_never_passed(
    bundle, keys, allow, monkeypatch, tmp_path
):
    signed = signatures.sign(bundle, keys["acme"])
    allowed = allow("acme")
    monkeypatch.setenv("PATH", str(tmp_path))
    ok, message = check(signed)
    assert ok
    assert message.startswith("1 NOT CHECKED: signatures need ssh-keygen")
    assert verify_bundle(signed).signatures == ()
    with pytest.raises(UnavailableError, match="ssh-keygen"):
        verify_bundle(signed, allowed)
    with pytest.raises(UnavailableError, match="ssh-keygen"):
        signatures.sign(bundle, keys["acme"])
    assert check(bundle)[0], "nothing to check needs nothing to check it"


# -- signing ----------------------------------------------------------------------------------


@pytest.fixture
def run(tmp_path, record):
    return builders.write(tmp_path / "runs" / "one", builders.run_files(record))


@pytest.fixture
def no_terminal(monkeypatch):
    """Start what is started without a terminal, as a workflow would."""
    real = subprocess.run
    monkeypatch.setattr(
        subprocess, "run", lambda *a, **k: real(*a, **{**k, "start_new_session": True})
    )
    for name in ("SSH_ASKPASS", "DISPLAY", "SSH_AUTH_SOCK"):
        monkeypatch.delenv(name, raising=False)


def test_packaging_signs_folder_and_zip(run, keys, tmp_path, allow):
    output = tmp_path / "submissions"
    (path,) = package.package([run], WHOSE, output, zip=True, key=keys["acme"])
    packed = path.with_name(path.name + ".zip")
    for one in (path, packed):
        verification = verify(one, allow("acme"))
        assert verification.ok
        assert [found.principal for found in verification.signatures] == ["acme"]
    assert read_bundle(path).files == read_bundle(packed).files


def test_an_existing_bundle_is_signed_and_its_zip_along(run, keys, tmp_path):
    output = tmp_path / "submissions"
    (path,) = package.package([run], WHOSE, output, zip=True)
    before = read_bundle(path)
    assert package.sign([path], keys["other"]) == [path]
    after = read_bundle(path)
    assert after.bundle_id == before.bundle_id
    assert len(after.signatures) == 1
    assert read_bundle(path.with_name(path.name + ".zip")).files == after.files


def test_packaging_again_with_a_key_adds_the_signature_and_changes_nothing_else(
    run, keys, tmp_path
):
    output = tmp_path / "submissions"
    (path,) = package.package([run], WHOSE, output)
    before = dict(read_bundle(path).files)
    package.package([run], WHOSE, output, key=keys["acme"])
    package.package([run], WHOSE, output)
    after = read_bundle(path)
    assert {n: c for n, c in after.files.items() if n not in after.signatures} == before
    assert len(after.signatures) == 1


def test_a_zip_alone_is_signed_in_place(run, keys, tmp_path):
    (path,) = package.package([run], WHOSE, tmp_path / "submissions", zip=True)
    alone = tmp_path / "alone.zip"
    shutil.move(path.with_name(path.name + ".zip"), alone)
    package.sign([alone], keys["acme"])
    assert len(verify(alone).signatures) == 1


def test_a_bundle_that_does_not_verify_is_not_signed(record, keys, tmp_path):
    bad = with_manifest(builders.run_files(record) | {"plugin/more.py": b""})
    path = builders.write(tmp_path / "bundle", bad)
    with pytest.raises(BundleRefusedError, match="not worth a signature: plugin"):
        package.sign([path], keys["acme"])
    assert not (path / "SIGNATURES").exists()


def unusable(folder, keys, kind):
    """Return a path that is no key, of some kind."""
    path = folder / "key"
    if kind == "text":
        path.write_text("hello")
    elif kind == "two words":
        path.write_text("hello world")
    elif kind == "folder":
        path.mkdir()
    elif kind == "open to all":
        shutil.copy(keys["acme"], path)
        path.chmod(0o644)
    elif kind == "public alone":
        shutil.copy(keys["acme"].with_suffix(".pub"), path)
    elif kind == "cut off":
        path.write_bytes(keys["acme"].read_bytes()[:100])
        path.chmod(0o600)
    return keys["locked"] if kind == "locked" else path


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("missing", "--sign: cannot read"),
        ("text", "this is no ssh key"),
        ("two words", "this is no ssh key"),
        ("folder", "not a regular file"),
        ("cut off", "ssh-keygen cannot sign with it"),
        ("public alone", "no ssh-agent holds its private key"),
        ("locked", "asks for its passphrase, and it was not given: run this in a terminal"),
        ("open to all", "chmod 600"),
    ],
)
@pytest.mark.usefixtures("no_terminal")
def test_a_key_that_cannot_be_used_is_a_usage_error_and_nothing_is_written(
    run, keys, tmp_path, kind, reason
):
    output = tmp_path / "submissions"
    with pytest.raises(UsageError, match=reason) as refusal:
        package.package([run], WHOSE, output, key=unusable(tmp_path, keys, kind))
    assert str(refusal.value).isprintable()
    assert not output.exists()


def test_an_agent_signs_for_a_public_key(bundle, keys, tmp_path, monkeypatch):
    needs.program("ssh-agent")
    door = tmp_path / "agent"
    agent = subprocess.Popen(["ssh-agent", "-D", "-a", str(door)], stdout=subprocess.DEVNULL)
    try:
        monkeypatch.setenv("SSH_AUTH_SOCK", str(door))
        patience.until(door.exists, [agent])
        subprocess.run(["ssh-add", "-q", str(keys["acme"])], check=True)
        public = tmp_path / "acme.pub"
        shutil.copy(keys["acme"].with_suffix(".pub"), public)
        (found,) = signatures.signers(signatures.sign(bundle, public))
        assert found.fingerprint == fingerprint(keys["acme"])
    finally:
        agent.terminate()
        agent.wait()


def test_the_key_is_named_in_the_file_of_the_signature(bundle, keys):
    (name,) = signatures.sign(bundle, keys["acme"]).signatures
    digest = fingerprint(keys["acme"]).removeprefix("SHA256:").replace("/", "_")
    assert name == f"SIGNATURES/SHA256-{digest}.sig"


def test_checking_signatures_leaves_nothing_behind(bundle, keys, tmp_path, monkeypatch):
    signed = signatures.sign(bundle, keys["acme"])
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    signatures.signers(signed)
    assert os.listdir(tmp_path) == []
    assert json.loads(signed.manifest)
