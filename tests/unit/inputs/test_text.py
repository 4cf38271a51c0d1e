"""Text as tokens: bytes as they are, a tokenizer.json without its habits, pieces that cut none."""

from __future__ import annotations

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmb.errors import UnavailableError, UsageError
from llmb.inputs import text
from llmb.inputs.text import lines_of, open_tokenizer, pieces_of, read_text
from tests.unit.builders_inputs import write_tokenizer

WORDS = ["one", "two", "three"]


def written(folder, content):
    path = folder / "text.txt"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


@given(content=st.binary())
def test_a_token_of_the_byte_tokenizer_is_a_byte(tmp_path_factory, content):
    path = written(tmp_path_factory.mktemp("text"), content)
    assert read_text(path, open_tokenizer("bytes")).tolist() == list(content)


def test_a_tokenizer_file_gives_its_own_ids(tmp_path):
    tokenizer = open_tokenizer(str(write_tokenizer(tmp_path / "t.json", WORDS)))
    path = written(tmp_path, "two three\none four\n")
    assert tokenizer.vocab_size == 4
    assert read_text(path, tokenizer).tolist() == [2, 3, 1, 0]


def test_nothing_is_cut_padded_or_added_whatever_the_file_asks_for(tmp_path):
    tokenizer = open_tokenizer(str(write_tokenizer(tmp_path / "t.json", WORDS, hurdles=True)))
    path = written(tmp_path, "one two three one")
    assert read_text(path, tokenizer).tolist() == [1, 2, 3, 1]


def test_a_gap_in_the_ids_counts_for_the_vocabulary(tmp_path):
    path = write_tokenizer(tmp_path / "t.json", WORDS)
    path.write_text(path.read_text().replace('"three": 3', '"three": 70000'))
    tokenizer = open_tokenizer(str(path))
    assert tokenizer.vocab_size == 70001
    assert read_text(written(tmp_path, "three"), tokenizer).tolist() == [70000]


@given(lines=st.lists(st.sampled_from([*WORDS, "", "one two", "four\r"]), max_size=30))
def test_text_in_many_pieces_has_the_tokens_of_the_whole(tmp_path_factory, lines):
    folder = tmp_path_factory.mktemp("text")
    tokenizer = open_tokenizer(str(write_tokenizer(folder / "t.json", WORDS)))
    path = written(folder, "\n".join(lines))
    whole = read_text(path, tokenizer).tolist()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text, "PIECE_BYTES", 8)  # no line is longer
        patch.setattr(text, "_BATCH_BYTES", 12)
        assert len(list(pieces_of(path))) >= path.stat().st_size // 19
        assert read_text(path, tokenizer).tolist() == whole


@given(content=st.text(), size=st.integers(1, 9))
def test_a_piece_cuts_no_character_and_all_pieces_are_the_text(tmp_path_factory, content, size):
    path = written(tmp_path_factory.mktemp("text"), content)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text, "PIECE_BYTES", size)
        pieces = list(pieces_of(path))
    assert "".join(piece.content.decode() for piece in pieces) == content
    offset = 0
    for piece in pieces:
        assert piece.offset == offset
        assert len(piece.content) <= 2 * size + 3
        offset += len(piece.content)


def test_lines_lose_what_ends_them_and_keep_their_place(tmp_path):
    path = written(tmp_path, b"one\n\r\ntwo\r\n three")
    assert list(lines_of(path)) == [(0, b"one"), (4, b""), (6, b"two"), (11, b" three")]


def test_what_is_not_utf8_is_refused_at_its_byte_and_told_what_to_do(tmp_path):
    tokenizer = open_tokenizer(str(write_tokenizer(tmp_path / "t.json", WORDS)))
    path = written(tmp_path, b"one two\nthr\xe9e")
    with pytest.raises(UsageError, match=r"text\.txt.*byte 11.*--tokenizer bytes"):
        read_text(path, tokenizer)


@pytest.mark.parametrize(
    "content", ["", "text", "[]", "{}", '{"model": {"type": "Fast"}}', "\0", "null"]
)
def test_a_file_that_is_no_tokenizer_is_refused_in_one_line(tmp_path, content):
    path = written(tmp_path, content)
    with pytest.raises(UsageError, match=r"text\.txt.*no tokenizer\.json") as caught:
        open_tokenizer(str(path))
    assert "\n" not in str(caught.value)


def test_a_tokenizer_that_fails_on_the_text_is_told(tmp_path):
    path = write_tokenizer(tmp_path / "t.json", WORDS)
    path.write_text(path.read_text().replace('"[UNK]": 0,', "", 1))
    with pytest.raises(UsageError, match="cannot be tokenised"):
        read_text(written(tmp_path, "four"), open_tokenizer(str(path)))


@pytest.mark.parametrize(("name", "words"), [("nope.json", "No such file"), ("", "a folder")])
def test_a_tokenizer_that_is_not_there_is_told(tmp_path, name, words):
    with pytest.raises(UsageError, match=words):
        open_tokenizer(str(tmp_path / name))


def test_without_the_library_the_line_says_how_to_install_it(tmp_path, monkeypatch):
    path = write_tokenizer(tmp_path / "t.json", WORDS)
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(UnavailableError, match=r"pip install 'llmb\[data\]'"):
        open_tokenizer(str(path))
    assert open_tokenizer("bytes").vocab_size == 256


def test_a_text_without_a_character_has_no_tokens(tmp_path):
    tokenizer = open_tokenizer(str(write_tokenizer(tmp_path / "t.json", WORDS)))
    assert read_text(written(tmp_path, ""), tokenizer).tolist() == []
