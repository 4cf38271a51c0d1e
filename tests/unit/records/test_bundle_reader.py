"""The reader of bundles refuses each hostile input with one clear line, and takes honest ones."""

from __future__ import annotations

import io
import json
import os
import socket
import stat
import subprocess
import threading
import warnings
import zipfile
from pathlib import Path

import pytest
import rfc8785
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from llmb.errors import BundleRefusedError, LlmbError, UsageError
from llmb.records import members, strict_json
from llmb.records.bundle import _difference, read_bundle, read_record
from llmb.submission.manifest import zip_bytes
from tests import builders, needs
from tests.builders import with_manifest

HONEST = {"record.json": b'{"a":1}', "env.json": b"{}", "diff.patch": b"-\n", "\xe9.txt": b"x"}


def zip_of(members_: list[tuple[str | zipfile.ZipInfo, bytes]], compress: int = 0) -> bytes:
    buffer = io.BytesIO()
    with warnings.catch_warnings(), zipfile.ZipFile(buffer, "w", compress) as archive:
        warnings.simplefilter("ignore")  # zipfile warns about a name given twice
        for name, content in members_:
            archive.writestr(name, content)
    return buffer.getvalue()


def read_zip_of(tmp_path: Path, raw: bytes):
    path = tmp_path / "bundle.zip"
    path.write_bytes(raw)
    return read_bundle(path)


def special(name: str, mode: int) -> zipfile.ZipInfo:
    info = zipfile.ZipInfo(name)
    info.create_system, info.external_attr = 3, mode << 16
    return info


def test_an_honest_zip_is_read_and_its_id_is_the_digest_of_its_manifest(tmp_path):
    bundle = read_zip_of(tmp_path, zip_bytes(with_manifest(HONEST)))
    assert dict(bundle.files) == with_manifest(HONEST)
    manifest = with_manifest(HONEST)["MANIFEST.json"]
    assert bundle.bundle_id == builders.hashlib.sha256(manifest).hexdigest()


def test_an_honest_folder_gives_the_same_bundle_as_its_zip(tmp_path):
    folder = builders.write(tmp_path / "folder", with_manifest(HONEST))
    assert read_bundle(folder) == read_zip_of(tmp_path, zip_bytes(with_manifest(HONEST)))


def test_a_zip_with_entries_for_its_folders_is_read(tmp_path):
    files = with_manifest({"a/b.txt": b"x"})
    raw = zip_of([(special("a/", stat.S_IFDIR | 0o755), b""), *files.items()])
    assert "a/b.txt" in read_zip_of(tmp_path, raw).files


def test_a_compressed_zip_is_read(tmp_path):
    files = with_manifest(HONEST | {"long.txt": os.urandom(1000) * 50})
    raw = zip_of([*files.items()], zipfile.ZIP_DEFLATED)
    assert len(raw) < 10_000
    assert dict(read_zip_of(tmp_path, raw).files) == files


def test_a_zip_by_another_program_is_read(tmp_path):
    zip_ = needs.program("zip")
    files = {name: content for name, content in HONEST.items() if name.isascii()}
    folder = builders.write(tmp_path / "folder", with_manifest(files))
    subprocess.run([zip_, "-q", "-r", tmp_path / "x.zip", "."], cwd=folder, check=True)
    assert read_bundle(tmp_path / "x.zip") == read_bundle(folder)


def test_signatures_are_outside_the_manifest(tmp_path):
    files = with_manifest(HONEST) | {"SIGNATURES/acme.sig": b"signed"}
    assert read_zip_of(tmp_path, zip_bytes(files)).bundle_id


BAD_NAMES = {
    "climbs out": ("../evil", "not a name of its own"),
    "absolute": ("/etc/x", "is absolute"),
    "backslash": ("a\\..\\b", "holds one of"),
    "drive letter": ("C:/x", "holds one of"),
    "alternate data stream": ("a.txt:evil", "holds one of"),
    "case collision": ("RECORD.json", "one file on some systems"),
    "folder case collision": ("D/b", "one on some systems"),
    "compatible characters": ("\uff52ecord.json", "one file on some systems"),
    "sharp s": ("STRASSE", "one file on some systems"),
    "not NFC": ("e\u0301.md", "normal form C"),
    "bidi override": ("a\u202egnp.py", "control, bidi"),
    "control": ("a\x1b[2J", "control, bidi"),
    "zero-width joiner": ("a\u200db", "control, bidi"),
    "windows reserved": ("aux.txt", "reserved on Windows"),
    "windows reserved device": ("evidence/COM1", "reserved on Windows"),
    "trailing dot": ("record.json.", "space or dot"),
    "trailing space": ("record.json ", "space or dot"),
    "empty part": ("a//b", "not a name of its own"),
    "dot part": ("./a", "not a name of its own"),
    "file as folder": ("env.json/x", "used as a folder"),
    "too long": ("a" * 300, "more than 240"),
}


@pytest.mark.parametrize("attack", BAD_NAMES)
def test_a_bad_name_is_refused_with_its_reason(tmp_path, attack):
    name, reason = BAD_NAMES[attack]
    files = HONEST | {"d/a": b"", "stra\xdfe": b""}
    raw = zip_of([*with_manifest(files | {name: b"evil"}).items()])
    with pytest.raises(BundleRefusedError, match=reason) as refusal:
        read_zip_of(tmp_path, raw)
    assert str(refusal.value).isprintable(), "a refusal must not carry control characters"


def test_a_member_twice_is_refused(tmp_path):
    raw = zip_of([*with_manifest(HONEST).items(), ("record.json", b'{"a":2}')])
    with pytest.raises(BundleRefusedError, match="one file on some systems"):
        read_zip_of(tmp_path, raw)


def test_a_name_cut_by_a_zero_byte_is_refused(tmp_path):
    raw = zip_of([*with_manifest(HONEST | {"recordZevil": b""}).items()])
    with pytest.raises(BundleRefusedError, match="reads as"):
        read_zip_of(tmp_path, raw.replace(b"recordZevil", b"record\0evil"))


def test_a_name_that_differs_between_the_zips_two_headers_is_refused(tmp_path):
    raw = zip_bytes(with_manifest(HONEST)).replace(b"env.json", b"nve.json", 1)
    with pytest.raises(BundleRefusedError):
        read_zip_of(tmp_path, raw)


@pytest.mark.parametrize("kind", ["S_IFLNK", "S_IFCHR", "S_IFBLK", "S_IFIFO", "S_IFSOCK"])
def test_a_link_or_device_in_a_zip_is_refused(tmp_path, kind):
    member = special("link", getattr(stat, kind) | 0o777)
    raw = zip_of([*with_manifest(HONEST).items(), (member, b"/etc/passwd")])
    with pytest.raises(BundleRefusedError, match="'link' is a link or device"):
        read_zip_of(tmp_path, raw)


def _flag(raw: bytes, flag: int) -> bytes:
    """Set a general-purpose flag in every header of a zip."""
    raw_ = bytearray(raw)
    for signature, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        at = raw_.find(signature)
        while at >= 0:
            raw_[at + offset] |= flag
            at = raw_.find(signature, at + 4)
    return bytes(raw_)


def test_an_encrypted_zip_is_refused(tmp_path):
    with pytest.raises(BundleRefusedError, match="is encrypted"):
        read_zip_of(tmp_path, _flag(zip_bytes(with_manifest(HONEST)), 1))


def test_a_zip_by_an_unusual_method_is_refused(tmp_path):
    raw = zip_of([*with_manifest(HONEST).items()], zipfile.ZIP_LZMA)
    with pytest.raises(BundleRefusedError, match="compressed by method 14"):
        read_zip_of(tmp_path, raw)


def test_every_truncation_of_a_zip_is_refused(tmp_path):
    raw = zip_bytes(with_manifest(HONEST))
    for length in range(len(raw)):
        with pytest.raises(BundleRefusedError):
            read_zip_of(tmp_path, raw[:length])


def test_a_file_larger_than_the_limit_is_refused_before_it_is_unpacked(tmp_path):
    raw = zip_of([("z.bin", bytes(100_000_000))], zipfile.ZIP_DEFLATED)
    with pytest.raises(BundleRefusedError, match="more than 67108864"):
        read_zip_of(tmp_path, raw)


def test_a_member_that_unpacks_to_hundreds_of_times_its_size_is_refused(tmp_path):
    raw = zip_of([("z.bin", bytes(30_000_000))], zipfile.ZIP_DEFLATED)
    with pytest.raises(BundleRefusedError, match="200 times"):
        read_zip_of(tmp_path, raw)


def test_a_member_that_understates_its_size_is_refused(tmp_path):
    content = os.urandom(1000)
    raw = zip_of([("z.bin", content)], zipfile.ZIP_DEFLATED)
    size, lie = (1000).to_bytes(4, "little"), (10).to_bytes(4, "little")
    with pytest.raises(BundleRefusedError):
        read_zip_of(tmp_path, raw.replace(size, lie))


@pytest.mark.parametrize("form", ["zip", "folder"])
def test_more_files_than_the_limit_are_refused(tmp_path, form):
    files = {f"f{n}": b"" for n in range(members.MAX_FILES + 1)}
    path = tmp_path / "many"
    if form == "zip":
        path.write_bytes(zip_bytes(files))
    else:
        builders.write(path, files)
    with pytest.raises(BundleRefusedError, match="2000"):
        read_bundle(path)


def test_a_total_above_the_limit_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(members, "MAX_TOTAL_BYTES", 100)
    with pytest.raises(BundleRefusedError, match="above 100 bytes"):
        read_zip_of(tmp_path, zip_bytes({"a": bytes(60), "b": bytes(60)}))


def test_an_unlisted_file_is_refused(tmp_path):
    raw = zip_bytes(with_manifest(HONEST) | {"extra.txt": b""})
    with pytest.raises(BundleRefusedError, match=r"'extra.txt' is in the bundle and not in"):
        read_zip_of(tmp_path, raw)


def test_a_missing_file_is_refused(tmp_path):
    files = with_manifest(HONEST)
    del files["diff.patch"]
    with pytest.raises(BundleRefusedError, match=r"'diff.patch' is in the manifest and missing"):
        read_zip_of(tmp_path, zip_bytes(files))


def test_one_flipped_bit_of_any_file_is_refused(tmp_path):
    honest = with_manifest(HONEST)
    for name in honest:
        files = dict(honest)
        files[name] = bytes([files[name][0] ^ 1]) + files[name][1:]
        with pytest.raises(BundleRefusedError):
            read_zip_of(tmp_path, zip_bytes(files))


def manifest_with(raw: bytes) -> bytes:
    return zip_bytes(HONEST | {"MANIFEST.json": raw})


def listed() -> dict:
    return json.loads(with_manifest(HONEST)["MANIFEST.json"])


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (json.dumps(listed(), indent=1).encode(), "not canonical"),
        (rfc8785.dumps(listed() | {"schema": "llmb.bundle/3"}), "update llmb"),
        (rfc8785.dumps(listed() | {"more": 1}), "is not of schema"),
        (rfc8785.dumps(listed() | {"files": []}), "no table of files"),
        (b"[]", "no table of files"),
        (b'{"files":{"a":1.50},"schema":"llmb.bundle/1"}', "not canonical"),
        (b'{"files":{"a":99999999999999999999},"schema":"llmb.bundle/1"}', "no canonical form"),
        (rfc8785.dumps({"schema": "llmb.bundle/1", "files": {**listed()["files"], "x": 1}}), "'x'"),
    ],
)
def test_a_manifest_that_is_not_the_one_llmb_writes_is_refused(tmp_path, raw, reason):
    with pytest.raises(BundleRefusedError, match=reason):
        read_zip_of(tmp_path, manifest_with(raw))


def test_a_folder_without_manifest_is_no_bundle(tmp_path):
    with pytest.raises(BundleRefusedError, match="not a bundle"):
        read_bundle(builders.write(tmp_path / "f", HONEST))


BAD_JSON = {
    "key twice": (b'{"tps":1,"tps":2}', "'tps' twice"),
    "key twice by escape": (b'{"a":1,"\\u0061":2}', "'a' twice"),
    "NaN": (b'{"a":NaN}', "NaN is not"),
    "Infinity": (b'{"a":-Infinity}', "-Infinity is not"),
    "1e999": (b'{"a":1e999}', "too large"),
    "deep": (b"[" * 100_000 + b"]" * 100_000, "nested deeper"),
    "deep behind a tricky string": (b'["\\\\\\"[",' + b"[" * 40 + b"]" * 41, "nested deeper"),
    "huge integer": (b'{"a":' + b"9" * 5000 + b"}", "more than 20 digits"),
    "latin-1": ('{"a":"\xe9"}'.encode("latin-1"), "not UTF-8"),
    "byte-order mark": (b"\xef\xbb\xbf{}", "not strict JSON"),
    "lone surrogate": (b'{"a":"\\ud800"}', "surrogate"),
    "trailing text": (b"{} {}", "not strict JSON"),
    "too large": (b" " * (strict_json.MAX_BYTES + 1), "bytes of JSON"),
}


@pytest.mark.parametrize("attack", BAD_JSON)
def test_json_with_more_than_one_meaning_or_beyond_a_limit_is_refused(attack):
    raw, reason = BAD_JSON[attack]
    with pytest.raises(BundleRefusedError, match=reason):
        strict_json.loads(raw, "result.json")


def test_brackets_in_strings_are_not_depth():
    text = json.dumps({"a": "[" * 100, 'b\\"[[': ["{" * 50]}).encode()
    assert strict_json.loads(text, "x") == json.loads(text)


def test_a_truth_value_is_not_a_number():
    assert not strict_json.same({"a": [1]}, {"a": [True]})
    assert strict_json.same({"a": [1]}, {"a": [1.0]})


# -- folders ---------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path):
    return builders.write(tmp_path / "bundle", with_manifest(HONEST))


def test_a_symlink_in_a_folder_is_refused_even_to_the_right_content(folder, tmp_path):
    (folder / "env.json").rename(tmp_path / "elsewhere")
    (folder / "env.json").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(BundleRefusedError, match=r"'env.json' is a link"):
        read_bundle(folder)


def test_a_symlink_to_a_folder_is_refused(folder, tmp_path):
    (folder / "loop").symlink_to(folder)
    with pytest.raises(BundleRefusedError, match="'loop' is a link"):
        read_bundle(folder)


def test_a_fifo_is_refused_without_waiting_for_a_writer(folder):
    os.mkfifo(folder / "pipe")
    with pytest.raises(BundleRefusedError, match="'pipe' is a link, device, fifo"):
        read_bundle(folder)


def test_a_socket_is_refused(folder, monkeypatch):
    monkeypatch.chdir(folder)  # a socket's path must be short
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("door")
        with pytest.raises(BundleRefusedError, match="'door' is a link, device"):
            read_bundle(folder)


def test_a_file_swapped_for_a_link_after_it_was_looked_at_is_not_followed(folder, monkeypatch):
    real = os.stat

    def look_then_swap(path, **options):
        result = real(path, **options)
        if path == "env.json" and stat.S_ISREG(result.st_mode):
            (folder / "env.json").unlink()
            (folder / "env.json").symlink_to("/etc/passwd")
        return result

    monkeypatch.setattr(os, "stat", look_then_swap)
    with pytest.raises(BundleRefusedError, match=r"'env.json' cannot be read"):
        read_bundle(folder)


def test_a_file_that_grows_while_it_is_read_is_refused(folder, monkeypatch):
    real = os.fstat
    seen = []

    def grow(descriptor):
        result = real(descriptor)
        if stat.S_ISREG(result.st_mode) and not seen:
            seen.append(descriptor)
        elif stat.S_ISREG(result.st_mode) and len(seen) == 1:
            seen.append(descriptor)
            with (folder / "MANIFEST.json").open("ab") as stream:
                stream.write(b" ")
        return result

    monkeypatch.setattr(os, "fstat", grow)
    with pytest.raises(BundleRefusedError, match="changed while it was read"):
        read_bundle(folder)


def test_a_folder_edited_all_the_time_is_refused_or_read_as_it_was(folder):
    honest, over = read_bundle(folder), threading.Event()

    def edit():
        while not over.is_set():
            for content in (b"{} ", b"{}"):
                (folder / "env.json").write_bytes(content)
            os.rename(folder / "diff.patch", folder / "gone")
            os.rename(folder / "gone", folder / "diff.patch")

    editor = threading.Thread(target=edit)
    editor.start()
    refused = 0
    try:
        for _ in range(200):
            try:
                assert read_bundle(folder) == honest
            except BundleRefusedError:
                refused += 1
    finally:
        over.set()
        editor.join()
    assert refused, "no read met an edit: this test has shown nothing"


def test_more_entries_than_anybody_looks_at_are_refused_before_they_are_listed(folder, monkeypatch):
    monkeypatch.setattr(members, "_MAX_ENTRIES", 50)
    for number in range(60):
        (folder / f"d{number}").mkdir()
    with pytest.raises(BundleRefusedError, match="more than 50 entries"):
        read_bundle(folder)


def test_a_folder_in_place_of_a_file_is_refused(tmp_path):
    with pytest.raises(BundleRefusedError, match="not a regular file"):
        members.read_file(tmp_path)


def test_a_name_that_is_not_unicode_is_refused(folder):
    with open(os.fsencode(folder) + b"/\xff.txt", "wb"):
        pass
    with pytest.raises(BundleRefusedError, match="control, bidi"):
        read_bundle(folder)


def test_folders_nested_without_end_are_refused(folder):
    (folder / "/".join("d" * 30)).mkdir(parents=True)
    with pytest.raises(BundleRefusedError, match="nested deeper"):
        read_bundle(folder)


def test_nothing_at_the_path_is_a_usage_error(tmp_path):
    with pytest.raises(UsageError, match="cannot read"):
        read_bundle(tmp_path / "nothing")


# -- records ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def record():
    return builders.make_record()


def parse(tmp_path, data) -> object:
    path = tmp_path / "record.json"
    path.write_text(json.dumps(data))
    return read_record(path)


def data_of(record) -> dict:
    return json.loads(builders.pretty_bytes(record))


def test_a_record_is_the_same_from_run_directory_bundle_zip_and_file(tmp_path, record):
    run = builders.write(tmp_path / "run", builders.run_files(record))
    bundle = builders.write(tmp_path / "bundle", builders.bundle_files(record))
    packed = tmp_path / "bundle.zip"
    packed.write_bytes(zip_bytes(builders.bundle_files(record)))
    for path in (run, bundle, packed, run / "record.json"):
        assert read_record(path) == record


def test_a_newer_schema_says_to_update(tmp_path, record):
    with pytest.raises(BundleRefusedError, match=r"llmb.run/2, made by a newer llmb: update"):
        parse(tmp_path, data_of(record) | {"schema": "llmb.run/2"})


def test_another_kind_of_file_is_not_a_record(tmp_path):
    with pytest.raises(BundleRefusedError, match="not a run record"):
        parse(tmp_path, {"schema": "other/1"})


def test_a_wrong_field_is_named_by_its_path(tmp_path, record):
    data = data_of(record)
    data["timing"]["repeats"][1]["start_ns"] = "soon"
    with pytest.raises(BundleRefusedError, match=r"timing\.repeats\.1\.start_ns: Input should be"):
        parse(tmp_path, data)


def test_an_unknown_field_is_refused(tmp_path, record):
    with pytest.raises(BundleRefusedError, match="Extra inputs"):
        parse(tmp_path, data_of(record) | {"\x1b[2J": 1})


@pytest.mark.parametrize("field", ["class", "schema"])
def test_a_field_under_its_python_name_is_refused(tmp_path, record, field):
    data = data_of(record)
    data[f"{field}_"] = data[field]
    if field == "class":
        del data[field]
    with pytest.raises(BundleRefusedError):
        parse(tmp_path, data)


@pytest.mark.parametrize("value", ["2", True])
def test_a_number_in_another_form_is_refused(tmp_path, record, value):
    data = data_of(record)
    data["timing"]["repeats"][0]["warmup_steps"] = value
    with pytest.raises(BundleRefusedError, match="not in the form llmb writes"):
        parse(tmp_path, data)


def test_an_unfinished_run_is_a_usage_error(tmp_path):
    with pytest.raises(UsageError, match="did not finish"):
        read_record(tmp_path)


# -- robustness ------------------------------------------------------------------------------


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(raw=st.binary(max_size=400))
def test_random_bytes_never_do_more_than_be_refused(tmp_path, raw):
    path = tmp_path / "x"
    path.write_bytes(raw)
    for read in (read_bundle, read_record):
        with pytest.raises(LlmbError):
            read(path)


COMPLETE = with_manifest(HONEST)
ZIPPED = zip_bytes(COMPLETE)


@settings(max_examples=500, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    changes=st.dictionaries(
        st.integers(0, len(ZIPPED) - 1), st.integers(0, 255), min_size=1, max_size=4
    )
)
def test_a_zip_with_random_bytes_changed_is_refused_or_has_the_same_content(tmp_path, changes):
    raw = bytearray(ZIPPED)
    for place, byte in changes.items():
        raw[place] = byte
    path = tmp_path / "x.zip"
    path.write_bytes(raw)
    try:
        bundle = read_bundle(path)
    except BundleRefusedError:
        return
    assert bundle.files == COMPLETE


@settings(max_examples=300)
@given(raw=st.binary(max_size=200) | st.text('[]{}",:\\0123456789eENa \n').map(str.encode))
def test_strict_json_gives_what_json_gives_or_refuses(raw):
    try:
        value = strict_json.loads(raw, "x")
    except BundleRefusedError:
        return
    assert value == json.loads(raw)


@pytest.mark.parametrize(
    ("a", "b", "where"),
    [
        ({"x": {"y": 1}}, {"x": {"y": 1}}, None),
        ({"x": {"y": 1}}, {"x": {"y": 2}}, ("x", "y")),
        ({"x": {"y": 1}}, {"x": 5}, ("x",)),
        ({"x": 5}, {"x": {"y": 1}}, ("x",)),
        ({"x": [1, 2]}, {"x": [1, 3]}, ("x", 1)),
        ({"x": [1]}, {"x": [1, 3]}, ("x",)),
        ({"x": 1, "z": 2}, {"x": 1}, ("z",)),
    ],
)
def test_the_first_difference_of_two_values_is_named(a, b, where):
    assert _difference(a, b, ()) == where
