"""Megatron's indexed files: read as their bytes are defined, and refused where anything is off."""

from __future__ import annotations

import os
import struct
import tracemalloc

import numpy as np
import pytest

from llmb.errors import UsageError
from llmb.inputs import indexed
from llmb.inputs.indexed import open_indexed, with_suffix, without_suffix
from tests.unit.builders_inputs import CODES, index_bytes, write_pair

TOKENS = [5, 6, 7, 8, 9]


@pytest.fixture
def prefix(tmp_path):
    """Give two documents, of three and two tokens."""
    return write_pair(tmp_path / "v1.7.text", [TOKENS[:3], TOKENS[3:]])


def replace_index(prefix, **changes):
    fields = {"sizes": [3, 2], "marks": [0, 1, 2], **changes}
    with_suffix(prefix, ".idx").write_bytes(index_bytes(**fields))


def refusal(prefix):
    with pytest.raises(UsageError) as caught:
        open_indexed(prefix)
    text = str(caught.value)
    assert "\n" not in text
    assert str(prefix) in text
    return text


def test_an_index_written_out_byte_by_byte_is_read_as_it_says(tmp_path):
    (tmp_path / "a.idx").write_bytes(
        b"MMIDIDX\x00\x00"
        b"\x01\x00\x00\x00\x00\x00\x00\x00"  # version
        b"\x08"  # uint16
        b"\x02\x00\x00\x00\x00\x00\x00\x00"  # sequences
        b"\x03\x00\x00\x00\x00\x00\x00\x00"  # marks of documents
        b"\x02\x00\x00\x00\x01\x00\x00\x00"  # sizes
        b"\x00\x00\x00\x00\x00\x00\x00\x00\x04\x00\x00\x00\x00\x00\x00\x00"  # offsets
        b"\x00\x00\x00\x00\x00\x00\x00\x00"
        b"\x01\x00\x00\x00\x00\x00\x00\x00"
        b"\x02\x00\x00\x00\x00\x00\x00\x00"
    )
    (tmp_path / "a.bin").write_bytes(b"\x01\x00\xff\x7d\x00\x02")
    found = open_indexed(tmp_path / "a")
    assert (found.sequences, found.documents, found.tokens, found.dtype) == (2, 2, 3, "<u2")
    assert found.read().tolist() == [1, 32255, 512]


@pytest.mark.parametrize("letter", list(CODES))
def test_tokens_of_every_integer_type_are_read(tmp_path, letter):
    prefix = write_pair(tmp_path / "x", [TOKENS[:1], TOKENS[1:]], letter)
    assert open_indexed(prefix).read().tolist() == TOKENS


def test_a_document_may_be_several_sequences_or_empty(prefix):
    replace_index(prefix, sizes=[1, 0, 2, 2], marks=[0, 2, 2, 4])
    found = open_indexed(prefix)
    assert (found.sequences, found.documents, found.tokens) == (4, 3, 5)


def test_tokens_are_mapped_and_cannot_be_written(prefix):
    tokens = open_indexed(prefix).read()
    assert isinstance(tokens, np.memmap)
    with pytest.raises(ValueError, match="read-only"):
        tokens[0] = 1


def test_more_sequences_than_are_checked_at_once_are_all_checked(tmp_path, monkeypatch):
    monkeypatch.setattr(indexed, "_CHUNK", 2)
    documents = [[n] * (n % 3) for n in range(11)]
    prefix = write_pair(tmp_path / "x", documents)
    assert open_indexed(prefix).tokens == sum(map(len, documents))
    index = with_suffix(prefix, ".idx")
    whole = index.read_bytes()
    sizes = [("<i", 34 + 4 * number) for number in range(11)]
    offsets = [("<q", 78 + 8 * number) for number in range(11)]
    marks = [("<q", 166 + 8 * number) for number in range(12)]
    for form, at in (*sizes, *offsets, *marks):
        (value,) = struct.unpack_from(form, whole, at)
        damaged = bytearray(whole)
        struct.pack_into(form, damaged, at, value + 3)
        index.write_bytes(damaged)
        refusal(prefix)


def test_the_legacy_format_is_named_and_refused(prefix):
    with_suffix(prefix, ".idx").write_bytes(b"TNTIDX\x00\x00" + bytes(80))
    text = refusal(prefix)
    assert "TNTIDX" in text
    assert "llmb data pack" in text


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"magic": b"MMIDIDX\x00\x01"}, ["MMIDIDX", "no indexed tokens"]),
        ({"version": 2}, ["version 2"]),
        ({"version": 2**64 - 1}, ["version 18446744073709551615"]),
        ({"code": 0}, ["dtype code 0", "8 (uint16)"]),
        ({"code": 9}, ["dtype code 9"]),
        ({"code": 6}, ["float64", "dtype code 6", "integers"]),
        ({"code": 7}, ["float32", "dtype code 7"]),
        ({"code": 4}, ["byte 6", "byte 12"]),
        ({"code": 4, "itemsize": 4}, ["20 bytes", "10", "cut short"]),
        ({"code": 1, "itemsize": 1}, ["exactly 5 bytes", "10"]),
        ({"sizes": [3, 1]}, ["exactly 8 bytes", "10"]),
        ({"sizes": [3, 3]}, ["12 bytes", "10"]),
        ({"sizes": [-1, 6], "offsets": [0, -2]}, ["sequence 0", "-1 tokens"]),
        ({"offsets": [0, 4]}, ["sequence 1", "byte 4", "byte 6"]),
        ({"offsets": [2, 6]}, ["sequence 0", "byte 2"]),
        ({"marks": [0, 1, 3]}, ["from 0 to 3", "from 0 to 2"]),
        ({"marks": [1, 1, 2]}, ["from 1 to 2"]),
        ({"marks": [0, 3, 2]}, ["document 1 ends before it begins"]),
        ({"marks": []}, ["documents go over nothing"]),
    ],
    ids=str,
)
def test_an_index_that_is_off_is_refused_with_what_is_off(prefix, changes, words):
    replace_index(prefix, **changes)
    text = refusal(prefix)
    for word in words:
        assert word in text


@pytest.mark.parametrize("keep", range(75))
def test_an_index_cut_short_anywhere_is_refused(prefix, keep):
    index = with_suffix(prefix, ".idx")
    whole = index.read_bytes()
    assert len(whole) == 82
    index.write_bytes(whole[:keep])
    refusal(prefix)


def test_an_index_with_something_after_its_end_is_refused(prefix):
    index = with_suffix(prefix, ".idx")
    index.write_bytes(index.read_bytes() + b"\0")
    assert "83 bytes" in refusal(prefix)


@pytest.mark.parametrize("change", [-1, -2, 1, 2])
def test_tokens_that_are_fewer_or_more_than_the_index_says_are_refused(prefix, change):
    data = with_suffix(prefix, ".bin")
    os.truncate(data, data.stat().st_size + change)
    assert "cut short" in refusal(prefix)


@pytest.mark.parametrize("counts", [(2**62, 2), (2, 2**62), (2**64 - 1, 2**64 - 1), (2**40, 3)])
def test_numbers_of_sequences_beyond_the_file_allocate_nothing(prefix, counts):
    index = with_suffix(prefix, ".idx")
    whole = bytearray(index.read_bytes())
    struct.pack_into("<QQ", whole, 18, *counts)
    index.write_bytes(whole)
    tracemalloc.start()
    try:
        refusal(prefix)
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()


def test_sizes_that_add_up_beyond_int64_are_refused_before_they_do(tmp_path, monkeypatch):
    monkeypatch.setattr(indexed, "_CHUNK", 4)
    largest = 2**31 - 1
    offsets = [largest * 8 * number for number in range(64)]
    data = index_bytes([largest] * 64, [0, 64], code=5, offsets=offsets)
    (tmp_path / "x.idx").write_bytes(data)
    (tmp_path / "x.bin").write_bytes(bytes(8))
    assert "more than" in refusal(tmp_path / "x")


@pytest.mark.parametrize("suffix", [".bin", ".idx"])
def test_a_missing_half_of_a_pair_is_named(prefix, suffix):
    with_suffix(prefix, suffix).unlink()
    assert f"{prefix}{suffix}" in refusal(prefix)


@pytest.mark.parametrize("suffix", [".bin", ".idx"])
def test_a_pipe_in_place_of_a_file_is_refused_and_not_waited_for(prefix, suffix):
    with_suffix(prefix, suffix).unlink()
    os.mkfifo(with_suffix(prefix, suffix))
    assert "no regular file" in refusal(prefix)


def test_a_prefix_is_what_is_left_without_bin_or_idx_and_keeps_its_dots(tmp_path):
    for name in ("a.v1", "a.v1.bin", "a.v1.idx"):
        assert without_suffix(tmp_path / name) == tmp_path / "a.v1"
