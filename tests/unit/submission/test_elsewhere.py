"""Evidence that lies elsewhere: the same findings as if it were here, and none unread."""

from __future__ import annotations

import hashlib
import json
import os
import threading
import time
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from click.testing import CliRunner

from llmb.cli import package_submission, report, verify
from llmb.errors import BundleRefusedError, EvidenceNotHereError, LlmbError, UsageError
from llmb.records.bundle import (
    ManifestFile,
    completed,
    from_files,
    read_bundle,
    read_partly,
    read_record,
)
from llmb.records.canonical import canonical_bytes
from llmb.submission import elsewhere
from llmb.submission.elsewhere import EvidencePlaces, places, put
from llmb.submission.package import package, sign
from llmb.submission.verified import Cache, verified
from llmb.submission.verify import verify_bundle
from tests import builders, needs
from tests.builders import WHOSE, with_manifest

LARGE = "evidence/repeat-0/gradients.safetensors"
TWIN = "evidence/repeat-0/twin.safetensors"
RECORD = builders.make_record(repeats=1)
RUN = builders.run_files(RECORD)
WANTED = ManifestFile(sha256=hashlib.sha256(RUN[LARGE]).hexdigest(), bytes=len(RUN[LARGE]))


@pytest.fixture(scope="module")
def whole():
    return from_files(with_manifest(RUN))


@pytest.fixture
def store(tmp_path, whole):
    """A folder with the large evidence."""
    put(tmp_path / "evidence", whole.files)
    return tmp_path / "evidence"


@pytest.fixture
def place(tmp_path, whole):
    """The bundle without it."""
    kept = {name: content for name, content in whole.files.items() if name != LARGE}
    return builders.write(tmp_path / "bundle", kept)


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@contextmanager
def server(answer):
    """Serve on the loopback address: ``answer(handler)`` for each request."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            try:
                answer(self)
            except (BrokenPipeError, ConnectionResetError):
                self.close_connection = True

        do_HEAD = do_GET  # noqa: N815 - the name is of http.server

        def log_message(self, *_):
            pass

    made = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    made.daemon_threads = True
    threading.Thread(target=made.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{made.server_port}"
    finally:
        made.shutdown()
        made.server_close()


def giving(content, asked=None, length=True):
    def answer(handler):
        if asked is not None:
            asked.append((handler.command, handler.path))
        handler.send_response(200)
        if length:
            handler.send_header("Content-Length", str(len(content)))
        handler.end_headers()
        if handler.command == "GET":
            handler.wfile.write(content)

    return answer


def take(*names, wait_s=30.0):
    return EvidencePlaces(names, wait_s).take(WANTED)


# -- the same bundle -------------------------------------------------------------------------------


def test_what_is_found_elsewhere_makes_the_same_bundle_and_the_same_checks(place, store, whole):
    found = read_bundle(place, EvidencePlaces([str(store)]).take)
    assert found == whole
    assert verify_bundle(found).checks == verify_bundle(whole).checks
    assert verify_bundle(found).ok


def test_without_it_nothing_is_verified_and_one_line_says_what_to_do(place):
    partly = read_partly(place)
    assert set(partly.elsewhere) == {LARGE}
    line = r"^evidence not here: 1 file of 0\.5 MB; give --evidence PATH_OR_URL$"
    for act in (
        lambda: read_bundle(place),
        lambda: verify_bundle(partly),
        lambda: verified(partly),
    ):
        with pytest.raises(EvidenceNotHereError, match=line):
            act()
    assert read_record(place) == RECORD, "the record is here"


@pytest.mark.parametrize("name", sorted(set(RUN) - {LARGE}))
def test_no_other_file_may_be_left_out(tmp_path, store, whole, name):
    kept = {n: content for n, content in whole.files.items() if n not in (name, LARGE)}
    path = builders.write(tmp_path / "bundle", kept)
    put(store, {LARGE: RUN[name] + bytes(2**16)})
    (store / f"sha256-{hashlib.sha256(RUN[name]).hexdigest()}").write_bytes(RUN[name])
    with pytest.raises(BundleRefusedError, match="in the manifest and missing from the bundle"):
        read_bundle(path, EvidencePlaces([str(store)]).take)


def test_a_required_file_that_the_manifest_does_not_list_stays_refused(tmp_path, store):
    less = {name: content for name, content in RUN.items() if name != LARGE}
    path = builders.write(tmp_path / "bundle", with_manifest(less))
    checks = verify_bundle(read_bundle(path, EvidencePlaces([str(store)]).take)).checks
    same = verify_bundle(from_files(with_manifest(less))).checks
    assert checks == same


def test_a_changed_file_that_is_here_is_refused_before_anything_is_fetched(place, store):
    (place / "audit.json").write_bytes(b"{}")
    with pytest.raises(BundleRefusedError, match=r"'audit\.json' is not the file"):
        read_bundle(place, EvidencePlaces([str(store)]).take)


def test_a_digest_that_is_listed_twice_is_one_file_there(tmp_path, store):
    files = with_manifest(RUN | {TWIN: RUN[LARGE]})
    kept = {name: content for name, content in files.items() if name not in (LARGE, TWIN)}
    path = builders.write(tmp_path / "bundle", kept)
    found = read_bundle(path, EvidencePlaces([str(store)]).take)
    assert found == from_files(files)
    assert verify_bundle(found).checks == verify_bundle(from_files(files)).checks


NAMES = (
    "evidence/repeat-0/../../x.safetensors",
    "/evidence/repeat-0/x.safetensors",
    "evidence/repeat-0/x/y.safetensors",
    "evidence/repeat-0/.safetensors",
    "evidence/repeat-0/x.safetensors\n",
    "evidence/repeat-00/x.safetensors",
    "plugin/x.safetensors",
    "evidence\\repeat-0\\x.safetensors",
)


def listed(**more):
    """Return a manifest of one small file and of ``more``, and that file."""
    data = json.loads(with_manifest({"record.json": b"{}"})["MANIFEST.json"])
    data["files"] |= more
    return {"MANIFEST.json": canonical_bytes(data), "record.json": b"{}"}


def entry(size=2**20, sha256="a" * 64):
    return {"sha256": sha256, "bytes": size}


@pytest.mark.parametrize("name", NAMES)
def test_a_name_that_is_no_evidence_of_a_repeat_is_never_looked_for(tmp_path, name):
    path = builders.write(tmp_path / "bundle", listed(**{name: entry()}))
    with pytest.raises(BundleRefusedError, match="missing from the bundle"):
        read_partly(path)


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (entry(sha256="../../../../etc/passwd"), "sha256"),
        (entry(sha256="A" * 64), "sha256"),
        (entry(sha256="a" * 64 + "\n"), "sha256"),
        (entry(size=-1), "bytes"),
        (entry(size="1048576"), "bytes"),
        (entry(size=2**20 + 0.5), "bytes"),
        (entry() | {"url": "http://127.0.0.1/"}, "url"),
        ([], "MANIFEST"),
        (entry(size=2**40), "more than"),
        (entry(size=2**16 - 1), "missing from the bundle"),
    ],
)
def test_an_entry_that_is_no_digest_and_size_is_refused(tmp_path, said, words):
    path = builders.write(tmp_path / "bundle", listed(**{LARGE: said}))
    with pytest.raises(BundleRefusedError, match=words):
        read_partly(path)


def test_all_of_it_together_is_held_to_the_limits_of_a_bundle(tmp_path):
    many = {f"evidence/repeat-{n}/x.safetensors": entry(60 * 2**20) for n in range(5)}
    path = builders.write(tmp_path / "bundle", listed(**many))
    with pytest.raises(BundleRefusedError, match="takes the total above"):
        read_partly(path)
    crowd = {f"evidence/repeat-{n}/x.safetensors": entry(2**16) for n in range(2001)}
    path = builders.write(tmp_path / "crowd", listed(**crowd))
    with pytest.raises(BundleRefusedError, match="one file more than"):
        read_partly(path)


def test_names_that_are_one_file_on_some_systems_are_refused(tmp_path):
    twice = {f"evidence/repeat-0/{name}.safetensors": entry() for name in ("x", "X")}
    with pytest.raises(BundleRefusedError, match="one file on some systems"):
        read_partly(builders.write(tmp_path / "bundle", listed(**twice)))


# -- a folder --------------------------------------------------------------------------------------


def test_a_folder_may_be_an_image_layout_of_oci(tmp_path):
    (tmp_path / "blobs" / "sha256").mkdir(parents=True)
    (tmp_path / "blobs" / "sha256" / WANTED.sha256).write_bytes(RUN[LARGE])
    assert take(f"{tmp_path}/blobs/sha256/") == RUN[LARGE]


def other_bytes(blob):
    blob.write_bytes(bytes(WANTED.bytes))


def longer(blob):
    blob.write_bytes(RUN[LARGE] + b"x")


def shorter(blob):
    blob.write_bytes(RUN[LARGE][:-1])


def link(blob):
    blob.rename(blob.with_name("real"))
    blob.symlink_to("real")


def fifo(blob):
    blob.unlink()
    os.mkfifo(blob)


def gone(blob):
    blob.unlink()


def folder(blob):
    blob.unlink()
    blob.mkdir()


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (other_bytes, "other bytes than the manifest lists"),
        (longer, "more than"),
        (shorter, "the manifest lists"),
        (link, "a link"),
        (fifo, "not a regular file"),
        (gone, "No such file"),
        (folder, "not a regular file"),
    ],
)
def test_what_is_not_the_plain_file_of_that_digest_is_not_taken(store, spoil, words):
    (blob,) = store.iterdir()
    spoil(blob)
    with pytest.raises(EvidenceNotHereError, match=words) as caught:
        take(str(store))
    assert str(caught.value).startswith("evidence not here: ")
    assert "\n" not in str(caught.value)
    if spoil is not other_bytes:
        assert not EvidencePlaces([str(store)]).has(WANTED)


def test_the_next_place_is_asked_where_one_has_other_bytes(tmp_path, store):
    bad = tmp_path / "bad"
    bad.mkdir()
    (bad / f"sha256-{WANTED.sha256}").write_bytes(bytes(WANTED.bytes))
    assert take(str(bad), str(store)) == RUN[LARGE]


# -- a server --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("end", "path"),
    [
        ("", f"/sha256-{WANTED.sha256}"),
        ("/some/folder/", f"/some/folder/sha256-{WANTED.sha256}"),
        ("/v2/acme/evidence/blobs/sha256:", f"/v2/acme/evidence/blobs/sha256:{WANTED.sha256}"),
        ("/blobs/sha256/", f"/blobs/sha256/{WANTED.sha256}"),
    ],
)
def test_a_server_gives_it_under_its_digest(end, path):
    asked = []
    with server(giving(RUN[LARGE], asked)) as address:
        assert take(address + end) == RUN[LARGE]
        assert EvidencePlaces([address + end]).has(WANTED)
    assert asked == [("GET", path), ("HEAD", path)]


def no_such(handler):
    handler.send_error(404, "no\nsuch \x1b[31mthing")


def endless(handler):
    handler.send_response(200)
    handler.end_headers()
    while True:
        handler.wfile.write(bytes(2**16))


def endless_error(handler):
    handler.send_response(302)
    handler.send_header("Location", handler.path)
    handler.end_headers()
    while True:
        handler.wfile.write(bytes(2**16))


def cut_off(handler):
    handler.send_response(200)
    handler.send_header("Content-Length", str(WANTED.bytes))
    handler.end_headers()
    handler.wfile.write(RUN[LARGE][:1000])


def nonsense(handler):
    handler.wfile.write(b"\x00\xffSSH-2.0-x\r\n" * 100)


def endless_header(handler):
    handler.wfile.write(b"HTTP/1.1 200 OK\r\nX: ")
    while True:
        handler.wfile.write(b"x" * 2**16)


def to(address):
    def answer(handler):
        handler.send_response(302)
        handler.send_header("Location", address)
        handler.end_headers()

    return answer


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (no_such, r"answers 404$"),
        (endless, r"it gives more, the manifest lists \d+$"),
        (endless_error, r"redirects more than 5 times$"),
        (cut_off, r"it gives 1000 bytes, the manifest lists \d+$"),
        (nonsense, r"no answer of HTTP \(\w+\)$"),
        (endless_header, r"no answer of HTTP \(LineTooLong\)$"),
        (giving(RUN[LARGE] + b"x"), r"it has '\d+' bytes, the manifest lists \d+$"),
        (giving(bytes(WANTED.bytes)), r"has other bytes than the manifest lists$"),
        (to("file:///etc/passwd"), r"redirects to what is no address of http or https$"),
        (to("ftp://127.0.0.1/x"), r"redirects to what is no address of http or https$"),
        (to("data:,x"), r"redirects to what is no address of http or https$"),
        (to("http://[::1"), r"Invalid IPv6 URL$"),
    ],
)
def test_a_server_that_gives_anything_else_is_one_clear_line(answer, words):
    with server(answer) as address, pytest.raises(EvidenceNotHereError, match=words) as caught:
        take(address)
    assert str(caught.value).startswith(f"evidence not here: '{address}")
    assert "\n" not in str(caught.value)
    assert "\x1b" not in str(caught.value)


def test_a_redirect_is_followed_to_the_bytes():
    with server(giving(RUN[LARGE])) as there, server(to(f"{there}/elsewhere")) as address:
        assert take(address) == RUN[LARGE]


def test_no_redirect_leads_from_https_to_http():
    with pytest.raises(ValueError, match="from https to http"):
        elsewhere._check_redirect(
            elsewhere.urlsplit("https://a.example/x"), elsewhere.urlsplit("http://a.example/x")
        )


def hang(handler):
    time.sleep(20)


def drip(handler):
    handler.send_response(200)
    handler.end_headers()
    for _ in range(200):
        handler.wfile.write(b"x")
        handler.wfile.flush()
        time.sleep(0.1)


@pytest.mark.parametrize("answer", [hang, drip])
def test_a_server_that_takes_for_ever_is_left_and_not_asked_again(monkeypatch, answer):
    monkeypatch.setattr(elsewhere, "SLOWEST", 1e9)
    asked = []

    def counted(handler):
        asked.append(handler.path)
        answer(handler)

    with server(counted) as address:
        there = EvidencePlaces([address], wait_s=0.5)
        for _ in range(3):
            with pytest.raises(EvidenceNotHereError, match=r"no whole answer within|in time"):
                there.take(WANTED)
        assert not there.has(WANTED)
    assert len(asked) == 1


def test_nobody_there_is_one_clear_line():
    with server(hang) as address:
        pass
    with pytest.raises(EvidenceNotHereError, match=f"'{address}.*': .*refused"):
        take(address)


@pytest.mark.parametrize(
    "name",
    [
        *("file:///tmp", "ftp://a.example/x", "http://", "http://a.example:x/", "https://a/?b=c"),
        *("https://me:secret@a.example/x", "https://a.example/x#y", "http://[::1", "", "/no\n"),
        "/nonexistent",
    ],
)
def test_a_place_that_is_no_folder_and_no_address_is_refused_at_once(name):
    with pytest.raises(UsageError, match=r"^--evidence "):
        places([name])


# -- packaging, signing, ranking -------------------------------------------------------------------


@pytest.fixture
def run(tmp_path):
    return builders.write(tmp_path / "runs" / "one", RUN)


def test_packaging_puts_large_evidence_into_a_folder_and_the_rest_into_the_bundle(tmp_path, run):
    output, folder = tmp_path / "submissions", tmp_path / "evidence"
    (path,) = package([run], WHOSE, output, zip=True, evidence=folder)
    assert [blob.name for blob in folder.iterdir()] == [f"sha256-{WANTED.sha256}"]
    (plain,) = package([run], WHOSE, tmp_path / "plain")
    for place in (path, path.with_name(path.name + ".zip")):
        assert set(read_partly(place).elsewhere) == {LARGE}
        assert read_bundle(place, EvidencePlaces([str(folder)]).take) == read_bundle(plain)
    before = {p: p.stat().st_mtime_ns for p in output.rglob("*") if p.is_file()}
    package([run], WHOSE, output, zip=True, evidence=folder)
    assert {p: p.stat().st_mtime_ns for p in output.rglob("*") if p.is_file()} == before


def test_a_link_in_the_folder_is_replaced_and_not_written_through(tmp_path, run):
    folder, target = tmp_path / "evidence", tmp_path / "mine"
    folder.mkdir()
    target.write_text("mine")
    (folder / f"sha256-{WANTED.sha256}").symlink_to(target)
    package([run], WHOSE, tmp_path / "submissions", evidence=folder)
    assert target.read_text() == "mine"
    assert take(str(folder)) == RUN[LARGE]


def test_only_what_stays_in_the_bundle_counts_against_its_size(tmp_path, run, monkeypatch):
    monkeypatch.setattr("llmb.submission.package.MAX_BYTES_PER_REPEAT", 400_000)
    with pytest.raises(BundleRefusedError, match="--evidence FOLDER puts large evidence elsewhere"):
        package([run], WHOSE, tmp_path / "submissions")
    assert package([run], WHOSE, tmp_path / "submissions", evidence=tmp_path / "evidence")


def test_signing_reads_evidence_and_leaves_it_where_it_is(tmp_path, run):
    needs.program("ssh-keygen")
    key = tmp_path / "key"
    elsewhere_ = tmp_path / "evidence"
    os.system(f"ssh-keygen -q -t ed25519 -N '' -f {key}")
    (path,) = package([run], WHOSE, tmp_path / "submissions", zip=True, evidence=elsewhere_)
    both = [path, path.with_name(path.name + ".zip")]
    with pytest.raises(EvidenceNotHereError):
        sign(both, key)
    take_ = EvidencePlaces([str(elsewhere_)]).take
    assert sign(both, key, take_) == both
    for one in both:
        assert set(read_partly(one).elsewhere) == {LARGE}
        assert len(read_bundle(one, take_).signatures) == 1


def asked_of(command, *words):
    return CliRunner().invoke(command.command, list(map(str, words)))


def failed(result):
    assert isinstance(result.exception, LlmbError), result.output
    return result.exception


@pytest.fixture
def handed_in(tmp_path, run):
    """The folder of evidence, of submissions, and the path of the one bundle there."""
    folder, tree = tmp_path / "evidence", tmp_path / "submissions"
    words = (run, "--submitter", "acme", "--system", "box", "--output", tree, "--evidence", folder)
    return folder, tree, asked_of(package_submission, *words).output.strip()


def test_verify_says_what_is_missing_and_takes_it(handed_in):
    folder, tree, path = handed_in
    for where in ([path], ["--all", tree]):
        unread = asked_of(verify, *where)
        assert failed(unread).exit_code == 3
        assert "not verified  evidence not here: 1 file of 0.5 MB; give --evidence" in unread.output
        assert "consistent" not in unread.output
        found = asked_of(verify, *where, "--evidence", folder)
        assert found.exit_code == 0
        assert "OK  " in found.output
    as_json = asked_of(verify, path, "--json")
    (data,) = json.loads(as_json.stdout)
    assert (data["ok"], data["unread"], data["checks"]) == (False, True, [])


def test_a_tree_is_not_verified_without_it_and_what_is_false_is_refused_first(handed_in):
    folder, tree, path = handed_in
    tree_ = asked_of(verify, "--tree", tree)
    assert failed(tree_).exit_code in (3, 6)
    assert "not verified  acme/box/" in tree_.output
    there = asked_of(verify, "--tree", tree, "--evidence", folder)
    assert "not verified" not in there.output
    Path(path, "model.diff").write_text("edited")
    edited = asked_of(verify, path)
    assert failed(edited).exit_code == 6


def ranked(tree, *more):
    result = asked_of(report, tree, "--json", *more)
    assert result.exit_code == 0, result.output
    data = json.loads(result.stdout)
    rows = [row for group in data["groups"] for row in group["rows"]]
    return len(rows), [one["reason"] for one in data["not_verified"]], data["refused"]


def test_report_ranks_only_what_was_read_and_never_for_another_place(tmp_path, run):
    folder, other, tree = (tmp_path / name for name in ("evidence", "other", "submissions"))
    package([run], WHOSE, tree, evidence=folder)
    other.mkdir()
    for _ in range(2):  # without a kept result, and with one
        rows, reasons, refused = ranked(tree)
        assert (rows, refused) == (0, [])
        assert reasons == ["evidence not here: 1 file of 0.5 MB; give --evidence PATH_OR_URL"]
        rows, reasons, refused = ranked(tree, "--evidence", other)
        assert (rows, len(reasons), refused) == (0, 1, [])
        rows, reasons, refused = ranked(tree, "--evidence", folder)
        assert (rows, reasons, refused) == (1, [], [])
    page = asked_of(report, tree, "--format", "html").stdout
    assert "<h2>Not verified</h2>" in page
    assert "<h2>Refused</h2>" not in page
    assert "## Not verified" in asked_of(report, tree).stdout


def test_a_kept_result_is_of_these_digests_alone(tmp_path, whole, place, store):
    """The second time nothing is read; another bundle's result is never taken."""
    first = Cache(tmp_path / "kept", EvidencePlaces([str(store)])).verified(read_partly(place))
    assert first == verified(whole)
    (blob,) = store.iterdir()
    blob.write_bytes(bytes(WANTED.bytes))  # of the same size: what was verified stays verified
    again = Cache(tmp_path / "kept", EvidencePlaces([str(store)])).verified(read_partly(place))
    assert again == first
    with pytest.raises(EvidenceNotHereError, match="other bytes"):
        Cache(tmp_path / "new", EvidencePlaces([str(store)])).verified(read_partly(place))
    blob.unlink()
    with pytest.raises(EvidenceNotHereError):
        Cache(tmp_path / "kept", EvidencePlaces([str(store)])).verified(read_partly(place))
    forged = RUN | {LARGE: RUN[LARGE][:-1] + b"\x07"}
    files = with_manifest(forged)
    put(store, files)
    bad = builders.write(
        tmp_path / "forged", {name: content for name, content in files.items() if name != LARGE}
    )
    found = Cache(tmp_path / "kept", EvidencePlaces([str(store)])).verified(read_partly(bad))
    assert found == verified(from_files(files))


def test_a_bundle_that_is_whole_is_completed_by_nothing(whole):
    assert completed(whole, None) is whole
