"""What ``--data`` names is found, pinned by a digest of what decides the tokens, or refused."""

from __future__ import annotations

import hashlib
import json
import shutil
import sys

import pytest
from pydantic import ValidationError

from llmb.config import DataSource
from llmb.errors import UnavailableError, UsageError
from llmb.inputs import files
from llmb.inputs.contents import describe, find_contents
from tests.unit.builders_inputs import write_pair, write_tokenizer

DOCUMENTS = [[1, 2, 3], [4, 5]]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Give a folder to stand in, with a pair, a list, a text and a tokenizer."""
    monkeypatch.chdir(tmp_path)
    write_pair(tmp_path / "pair", DOCUMENTS)
    (tmp_path / "list.txt").write_text("1 pair web\n3 pair.bin books\n")
    (tmp_path / "text.txt").write_text("Once upon a time.\n")
    write_tokenizer(tmp_path / "t.json", ["upon"])
    return tmp_path


@pytest.mark.parametrize(
    ("typed", "kind", "name", "tokens"),
    [
        ("pair", "indexed", "pair", 5),
        ("pair.bin", "indexed", "pair", 5),
        ("./pair.idx", "indexed", "pair", 5),
        ("indexed:pair.idx", "indexed", "pair", 5),
        ("list.txt", "file-list", "list.txt", 10),
        ("file-list:list.txt", "file-list", "list.txt", 10),
        ("text.txt", "text", "text.txt", 18),
        ("text:text.txt", "text", "text.txt", 18),
        ("text:list.txt", "text", "list.txt", 28),
        ("text:pair.bin", "text", "pair.bin", 10),
    ],
)
def test_what_is_typed_is_found(folder, typed, kind, name, tokens):
    found = describe(typed)
    assert found.kind == kind
    assert found.path == str(folder / name)
    assert found.tokens == tokens
    assert found.tokenizer == ("bytes" if kind == "text" else None)


def test_a_pair_goes_before_a_file_with_the_name_of_its_prefix(folder):
    (folder / "pair").write_text("text")
    assert describe("pair").kind == "indexed"
    assert describe("text:pair").kind == "text"


def test_a_tokenizer_file_is_kept_as_an_absolute_path(folder):
    found = find_contents("text.txt", "t.json")
    assert found.data.tokenizer == str(folder / "t.json")
    assert found.parts[0].read().tolist() == [0, 1, 0, 0, 0]
    assert found.data.tokens == 5


def test_parts_say_what_a_person_is_shown(folder):
    web, books = find_contents("list.txt").parts
    assert (web.corpus, web.weight, books.corpus, books.weight) == ("web", 0.25, "books", 0.75)
    assert {(p.path, p.tokens, p.documents, p.dtype) for p in (web, books)} == {
        (folder / "pair", 5, 2, "uint16")
    }


def test_the_digest_of_a_pair_is_that_of_its_bytes_as_documented(folder):
    def digest(value):
        text = json.dumps(value, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()

    index = hashlib.sha256((folder / "pair.idx").read_bytes()).hexdigest()
    ends = hashlib.sha256((folder / "pair.bin").read_bytes()).hexdigest()
    part = digest({"idx": index, "bin": 10, "ends": ends})
    assert describe("pair").sha256 == digest({"kind": "indexed", "parts": [[1, part]]})


@pytest.mark.parametrize(
    ("typed", "tokenizer"),
    [("pair", None), ("list.txt", None), ("text.txt", None), ("text.txt", "t.json")],
)
def test_copied_data_have_the_digest_of_the_original(folder, typed, tokenizer, monkeypatch):
    before = describe(typed, tokenizer)
    shutil.copytree(folder, folder / "copy")
    monkeypatch.chdir(folder / "copy")
    after = describe(typed, tokenizer)
    assert (after.sha256, after.tokens) == (before.sha256, before.tokens)
    assert after.path != before.path


def edit(path, old, new):
    content = path.read_bytes()
    assert old in content
    path.write_bytes(content.replace(old, new, 1))


@pytest.mark.parametrize(
    ("typed", "tokenizer", "change"),
    [
        ("pair", None, ("pair.bin", b"\x03", b"\x09")),
        ("list.txt", None, ("pair.bin", b"\x05", b"\x09")),
        ("list.txt", None, ("list.txt", b"1 pair", b"2 pair")),
        ("text.txt", None, ("text.txt", b"Once", b"once")),
        ("text.txt", "t.json", ("text.txt", b"Once", b"once")),
        ("text.txt", "t.json", ("t.json", b"upon", b"Once")),
    ],
)
def test_what_decides_the_tokens_changes_the_digest(folder, typed, tokenizer, change):
    before = describe(typed, tokenizer)
    edit(folder / change[0], *change[1:])
    assert describe(typed, tokenizer).sha256 != before.sha256


def test_the_borders_of_documents_change_the_digest(folder):
    before = describe("pair").sha256
    write_pair(folder / "pair", [[1, 2], [3, 4, 5]])
    assert describe("pair").sha256 != before


def test_comments_and_names_of_corpora_do_not_change_the_digest(folder):
    before = describe("list.txt").sha256
    (folder / "list.txt").write_text("# new\n10 ./pair a\n\n30 pair.idx b\n")
    assert describe("list.txt").sha256 == before


def test_the_same_text_as_bytes_and_by_a_tokenizer_has_two_digests(folder):
    assert describe("text.txt").sha256 != describe("text.txt", "t.json").sha256


def test_of_a_large_file_of_tokens_the_ends_and_the_size_are_seen_and_the_middle_is_not(
    folder, monkeypatch
):
    monkeypatch.setattr(files, "END_BYTES", 2)
    before = describe("pair").sha256
    seen = []
    for token in range(5):
        changed = [list(document) for document in DOCUMENTS]
        changed[token // 3][token % 3] = 9
        write_pair(folder / "pair", changed)
        seen.append(describe("pair").sha256 != before)
    assert seen == [True, False, False, False, True]


@pytest.mark.parametrize("size", range(7))
def test_of_a_small_file_every_byte_is_digested_once(tmp_path, monkeypatch, size):
    monkeypatch.setattr(files, "END_BYTES", 3)
    content = b"abcdefg"[:size]
    (tmp_path / "x").write_bytes(content)
    assert files.sha256_of_ends(tmp_path / "x") == hashlib.sha256(content).hexdigest()


@pytest.mark.parametrize(
    ("typed", "tokenizer", "words"),
    [
        ("nope", None, ["nope", "nope.bin"]),
        ("", None, ["''"]),
        ("text:", None, ["''"]),
        ("a\nb", None, ["written down"]),
        ("\udcff", None, ["written down"]),
        (".", None, ["a folder"]),
        ("/dev/zero", None, ["no regular file"]),
        ("text:/dev/zero", None, ["no regular file"]),
        ("file-list:/dev/zero", None, ["no regular file"]),
        ("indexed:text.txt", None, ["text.txt.idx", "No such file"]),
        ("file-list:text.txt", None, ["line 1", "4 words"]),
        ("indexed:nope", None, ["nope.idx"]),
        ("pair", "bytes", ["--tokenizer bytes", "holds tokens already"]),
        ("list.txt", "t.json", ["--tokenizer t.json"]),
        ("text.txt", "nope.json", ["nope.json", "No such file"]),
        ("text.txt", "text.txt", ["no tokenizer.json"]),
        ("text.txt", "", ["''"]),
        ("empty", None, ["empty", "no tokens"]),
        ("nothing", None, ["nothing", "no tokens"]),
        ("broken.txt", None, ["broken.txt:2: ", "gone.idx", "No such file"]),
        ("hollow.txt", None, ["nothing", "no tokens"]),
    ],
    ids=ascii,
)
def test_what_cannot_be_used_is_refused_in_one_line(folder, typed, tokenizer, words):
    (folder / "empty").write_text("")
    write_pair(folder / "nothing", [])
    (folder / "broken.txt").write_text("1 pair a\n1 gone b\n")
    (folder / "hollow.txt").write_text("1 pair a\n1 nothing b\n")
    with pytest.raises(UsageError) as caught:
        describe(typed, tokenizer)
    assert "\n" not in str(caught.value)
    for word in words:
        assert word in str(caught.value)


def test_without_the_library_bytes_work_and_a_tokenizer_is_unavailable(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    assert describe("text.txt").tokens == 18
    with pytest.raises(UnavailableError):
        describe("text.txt", "t.json")


@pytest.mark.parametrize(
    "change", [{"sha256": "0"}, {"tokens": 0}, {"kind": "parquet"}, {"size": 1}], ids=str
)
def test_a_source_that_describe_never_makes_is_no_source(folder, change):
    with pytest.raises(ValidationError):
        DataSource.model_validate({**describe("pair").model_dump(), **change})
