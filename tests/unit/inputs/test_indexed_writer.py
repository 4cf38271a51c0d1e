"""What is written is Megatron's format, whole or not at all, and over nothing."""

from __future__ import annotations

import os

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmb.errors import RunFailedError, UsageError
from llmb.inputs import indexed_writer
from llmb.inputs.indexed import DTYPES, open_indexed
from llmb.inputs.indexed_writer import dtype_for, writing
from tests.unit.builders_inputs import CODES, index_bytes, write_pair


def write(prefix, documents, dtype="<u2", *, eos=None, force=False):
    with writing(prefix, dtype, force=force) as writer:
        for document in documents:
            writer.add(np.array(document, np.int64))
            writer.end_document(eos)
    return writer


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_the_files_are_byte_for_byte_those_written_out_by_hand(tmp_path):
    documents = [[1, 2, 3], [4], [5, 6]]
    for letter, code in CODES.items():
        write_pair(tmp_path / "hand", documents, letter)
        write(tmp_path / "own", documents, DTYPES[code], force=True)
        for suffix in (".bin", ".idx"):
            hand = (tmp_path / f"hand{suffix}").read_bytes()
            assert (tmp_path / f"own{suffix}").read_bytes() == hand, letter


@given(
    dtype=st.sampled_from(["<u2", "<i4"]),
    documents=st.lists(st.lists(st.integers(0, 65535), min_size=1), min_size=1),
    eos=st.none() | st.integers(0, 65535),
)
def test_what_is_written_is_read_back(tmp_path_factory, dtype, documents, eos):
    prefix = tmp_path_factory.mktemp("data") / "x"
    write(prefix, documents, dtype, eos=eos)
    found = open_indexed(prefix)
    end = [] if eos is None else [eos]
    assert found.read().tolist() == [token for document in documents for token in document + end]
    assert (found.documents, found.sequences) == (len(documents), len(documents))
    assert found.dtype == dtype


def test_documents_without_a_token_are_counted_and_left_out(tmp_path):
    writer = write(tmp_path / "x", [[], [1], [], [2, 3]], eos=9)
    assert (writer.empty, writer.documents, writer.tokens) == (2, 2, 5)
    assert open_indexed(tmp_path / "x").read().tolist() == [1, 9, 2, 3, 9]


def test_a_document_longer_than_a_sequence_can_be_is_several_sequences(tmp_path, monkeypatch):
    monkeypatch.setattr(indexed_writer, "_LONGEST", 4)
    write(tmp_path / "x", [[1] * 10, [2] * 4, [3]])
    expected = index_bytes([4, 4, 2, 4, 1], [0, 3, 4, 5])
    assert (tmp_path / "x.idx").read_bytes() == expected
    assert open_indexed(tmp_path / "x").documents == 3


@pytest.mark.parametrize(
    ("vocab_size", "dtype"), [(1, "<u2"), (65499, "<u2"), (65500, "<i4"), (2**31, "<i4")]
)
def test_the_type_of_the_tokens_follows_the_vocabulary_as_in_megatron(vocab_size, dtype):
    assert dtype_for(vocab_size) == dtype


@pytest.mark.parametrize("suffix", [".bin", ".idx"])
def test_a_file_in_the_way_is_kept(tmp_path, suffix):
    there = tmp_path / f"x{suffix}"
    there.write_text("mine")
    with pytest.raises(UsageError, match="--force"):
        write(tmp_path / "x", [[1]])
    assert there.read_text() == "mine"
    assert names(tmp_path) == [there.name]


def test_a_file_that_came_while_writing_is_kept(tmp_path):
    def documents():
        yield [1]
        (tmp_path / "x.idx").write_text("mine")

    with pytest.raises(UsageError, match="--force"):
        write(tmp_path / "x", documents())
    assert (tmp_path / "x.idx").read_text() == "mine"
    assert names(tmp_path) == ["x.idx"]


def test_with_force_both_files_are_replaced(tmp_path):
    write(tmp_path / "x", [[1, 2, 3]])
    write(tmp_path / "x", [[4]], force=True)
    assert open_indexed(tmp_path / "x").read().tolist() == [4]
    assert names(tmp_path) == ["x.bin", "x.idx"]


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_what_was_interrupted_leaves_the_old_files_and_no_new_ones(tmp_path, error):
    write(tmp_path / "x", [[1, 2, 3]])

    def documents():
        yield [7]
        raise error

    with pytest.raises(error):
        write(tmp_path / "x", documents(), force=True)
    assert open_indexed(tmp_path / "x").read().tolist() == [1, 2, 3]
    assert names(tmp_path) == ["x.bin", "x.idx"]


def test_at_no_time_an_index_is_beside_tokens_that_are_not_its_own(tmp_path, monkeypatch):
    write(tmp_path / "x", [[1, 2, 3]])
    seen = []

    def replace(source, target, move=os.replace):
        seen.append(names(tmp_path)[1:])  # without the folder of the draft
        move(source, target)

    monkeypatch.setattr(os, "replace", replace)
    write(tmp_path / "x", [[4, 5, 6]], force=True)
    assert seen == [["x.bin"], ["x.bin"]]


def test_a_full_disk_is_told_in_a_line_and_leaves_nothing(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(RunFailedError, match="No space left on device"):
        write(tmp_path / "x", [[1]])
    assert names(tmp_path) == []


def test_a_folder_that_cannot_be_written_is_told(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot write"):
        write(tmp_path / "file" / "x", [[1]])


def test_others_may_read_what_was_written(tmp_path):
    before = os.umask(0o022)
    try:
        write(tmp_path / "x", [[1]])
    finally:
        os.umask(before)
    assert {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {0o644}
