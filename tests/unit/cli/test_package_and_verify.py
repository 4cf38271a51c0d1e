"""The two commands around bundles: what they ask for, what they say, and their exit codes."""

from __future__ import annotations

import json
import shutil
import subprocess

import pytest
from click.testing import CliRunner

from llmb import cli
from llmb.cli.standings import MEANING, NOT_COMPUTED
from llmb.errors import LlmbError
from tests import builders, needs


@pytest.fixture
def ssh():
    needs.program("ssh-keygen")


@pytest.fixture
def call():
    def run(*arguments):
        """Return the result of ``llmb``, with the exit code that ``main`` would give."""
        done = CliRunner().invoke(cli.llmb, [str(part) for part in arguments])
        if isinstance(done.exception, LlmbError):
            done.exit_code = done.exception.exit_code
        elif done.exception is not None:
            assert isinstance(done.exception, SystemExit), done.exception
        return done

    return run


@pytest.fixture(scope="module")
def record():
    return builders.make_record(repeats=1)


@pytest.fixture
def run(tmp_path, record):
    return builders.write(tmp_path / "runs" / "one", builders.run_files(record))


@pytest.fixture
def bundle(tmp_path, record):
    return builders.write(tmp_path / "bundle", builders.bundle_files(record))


@pytest.fixture(scope="module")
def key(tmp_path_factory):
    path = tmp_path_factory.mktemp("keys") / "acme"
    command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "acme", "-f", str(path)]
    subprocess.run(command, check=True)
    public = path.with_suffix(".pub").read_text()
    path.with_name("signers").write_text(f"acme {public}")
    return path


@pytest.mark.usefixtures("ssh")
def test_a_run_is_packaged_signed_and_verified_by_its_signer(call, run, key, tmp_path):
    flags = ("--submitter=acme", "--system=box", "--availability=preview", "--sign", key, "--json")
    done = call("package-submission", run, *flags, "--output", tmp_path / "submissions")
    assert done.exit_code == 0, done.output
    (bundle,) = json.loads(done.stdout)["bundles"]
    done = call("verify", bundle, "--signers", key.with_name("signers"), "--json")
    (result,) = json.loads(done.stdout)
    assert (done.exit_code, result["ok"]) == (0, True)
    (signature,) = result["signatures"]
    assert signature["principal"] == "acme"
    assert signature["fingerprint"].startswith("SHA256:")
    index = json.loads((tmp_path / "submissions/acme/box/system.json").read_bytes())
    assert index["availability"] == "preview"


@pytest.mark.usefixtures("ssh")
def test_a_bundle_is_signed_where_it_lies(call, bundle, key):
    done = call("package-submission", "--sign", key, bundle)
    assert done.exit_code == 0, done.output
    assert done.stdout.strip() == str(bundle)
    assert call("verify", bundle, "--signers", key.with_name("signers")).exit_code == 0


@pytest.mark.usefixtures("ssh")
def test_an_unsigned_bundle_is_refused_where_a_signer_is_asked_for(call, bundle, key):
    done = call("verify", bundle, "--signers", key.with_name("signers"))
    assert done.exit_code == 6
    assert "not signed" in str(done.exception)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["{run}"], "Missing option '--submitter'"),
        (["{run}", "--submitter=a"], "Missing option '--system'"),
        (["{bundle}", "--submitter=a", "--system=b"], "is a bundle: it can be signed"),
        (["{bundle}", "{run}", "--sign=k"], "is a bundle: it can be signed"),
        (["{bundle}", "--sign=k", "--submitter=a"], "it can only be signed"),
        (["{bundle}", "--sign=k", "--zip"], "it can only be signed"),
        (["{bundle}", "--sign=nothing"], "--sign: cannot read 'nothing'"),
        (["{run}", "--submitter=a", "--system=b", "--availability=soon"], "'soon' is not one of"),
        (["{run}", "--submitter=a", "--system=b", "--sign=nothing"], "cannot read 'nothing'"),
        (["a" * 300, "--submitter=a", "--system=b"], "is neither a path nor a run in runs"),
    ],
)
def test_what_cannot_work_is_a_usage_error(call, run, bundle, tmp_path, arguments, words):
    places = {"{run}": str(run), "{bundle}": str(bundle)}
    filled = [places.get(part, part) for part in arguments]
    done = call("package-submission", *filled, "--output", tmp_path / "submissions")
    assert done.exit_code == 2, done.output
    assert words in done.output + str(done.exception)
    assert not (tmp_path / "submissions").exists()


def test_a_file_of_signers_that_is_not_there_is_a_usage_error(call, bundle):
    done = call("verify", bundle, "--signers", "nobody")
    assert done.exit_code == 2
    assert "--signers: cannot read 'nobody'" in str(done.exception)


@pytest.fixture
def submissions(call, run, tmp_path):
    output = tmp_path / "submissions"
    flags = ("--submitter=acme", "--system=box", "--output", output)
    assert call("package-submission", run, *flags).exit_code == 0
    return output


def test_everything_below_a_folder_is_verified_indexes_included(call, submissions):
    done = call("verify", "--all", submissions)
    assert done.exit_code == 0, done.output
    assert done.stdout.endswith(f"1 bundles verified\n{MEANING}{NOT_COMPUTED[None]}\n")


def test_a_copy_of_a_run_is_refused_and_the_message_names_both(call, submissions):
    (bundle,) = (manifest.parent for manifest in submissions.rglob("MANIFEST.json"))
    copy = submissions / "Mallory/box/work/copy"
    copy.parent.mkdir(parents=True)
    shutil.copytree(bundle, copy)
    done = call("verify", "--all", submissions)
    assert done.exit_code == 6
    for one, other in ((bundle, copy), (copy, bundle)):
        line = f"  refused  clash: its run id is that of {str(other)!r}, and no history tells"
        assert f"{one}\n{line}" in done.stdout
    first, second = json.loads(call("verify", "--all", submissions, "--json").stdout)
    assert (first["ok"], second["ok"]) == (False, False)


def change_index(submissions, change):
    path = submissions / "acme/box/system.json"
    data = json.loads(path.read_bytes())
    change(data)
    path.write_text(json.dumps(data, indent=1))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda data: data.update(submitter="Rival"), "submitter 'Rival' lies in a folder 'acme'"),
        (lambda data: data["precisions"]["BF16"].update(bundles=[]), "is not listed"),
        (lambda data: data["precisions"]["FP32"].update(bundles=["a/b"]), "listed and not there"),
        (lambda data: data.update(schema="llmb.system-index/9"), "made by a newer llmb"),
    ],
)
def test_an_index_that_does_not_fit_its_bundles_is_refused_in_one_line(
    call, submissions, change, reason
):
    change_index(submissions, change)
    done = call("verify", "--all", submissions)
    assert done.exit_code == 6
    assert reason in str(done.exception)
    assert reason in done.stdout


@pytest.mark.parametrize(
    ("digest", "same", "words"),
    [
        ("17021ed72954ec1e5343180f741ee8a83891feccf9231d52781d69cb14af9cf8", True, "is the same"),
        ("649af7d83608b5067109ea718ef3f0fce24e609314ada6221fbe096abf664886", False, "is not the"),
    ],
)
def test_a_bundle_of_an_older_llmb_says_who_made_it_and_whether_that_is_run_here(
    call, tmp_path, digest, same, words
):
    changes = {"llmb_version": "0.1.0", "reference_digest": digest}
    record = builders.make_record(repeats=1).model_copy(update=changes)
    path = builders.write(tmp_path / "older", builders.bundle_files(record))
    done = call("verify", path)
    assert done.exit_code == 0
    line = f"made by llmb 0.1.0 (reference {digest[:12]}); the llama computation {words}"
    assert line in done.stdout.splitlines()[-2]
    assert done.stdout.splitlines()[-1] == MEANING + NOT_COMPUTED[None]
    (result,) = json.loads(call("verify", path, "--json").stdout)
    assert result["made_by"]["same_computation"] is same
    assert result["made_by"]["reference_digest"] == digest


def test_a_broken_bundle_among_others_is_named(call, submissions, record, tmp_path):
    builders.write(submissions / "acme/box/x/y", {"MANIFEST.json": b"{}"})
    done = call("verify", "--all", submissions, "--json")
    assert done.exit_code == 6
    results = {result["bundle"]: result["ok"] for result in json.loads(done.stdout)}
    assert sorted(results.values()) == [False, False, True], "the index is not complete either"


def test_no_ssh_keygen_is_an_unavailable_command(call, bundle, tmp_path, monkeypatch):
    (tmp_path / "key").write_text("-----BEGIN OPENSSH PRIVATE KEY-----\n")
    monkeypatch.setenv("PATH", "")
    done = call("package-submission", "--sign", tmp_path / "key", bundle)
    assert done.exit_code == 3
    assert "ssh-keygen" in str(done.exception)
    assert call("verify", bundle).exit_code == 0
