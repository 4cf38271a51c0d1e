"""Sequences follow from the seed and the files alone, and hold what the files hold."""

from __future__ import annotations

import hashlib
import os
import resource
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmb.errors import RunFailedError, UsageError
from llmb.inputs.contents import describe
from llmb.inputs.tokens import open_tokens
from tests.unit.builders_inputs import write_pair, write_tokenizer


def pair(folder, documents, letter="H", name="x"):
    return str(write_pair(folder / name, documents, letter))


def source(typed, vocab_size=100, tokenizer=None, sequence_length=1):
    return open_tokens(describe(typed, tokenizer), vocab_size, sequence_length)


def documented(seed, label, row):
    """Return the number of 63 bits that a stranger makes with hashlib alone."""
    digest = hashlib.sha256(f"{seed}:{label}:{row}".encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1


def test_a_stranger_finds_the_same_tokens_from_the_documentation(tmp_path):
    write_pair(tmp_path / "a", [list(range(40)), list(range(40, 50))])
    write_pair(tmp_path / "b", [list(range(50, 99))])
    (tmp_path / "list.txt").write_text("1 a x\n3 b x\n")
    files = [list(range(50)), list(range(50, 99))]
    expected = []
    for row in range(20):
        tokens = files[(documented(7, "file", row) >> 10) / 2**53 >= 0.25]
        start = documented(7, "start", row) * (len(tokens) - 6 + 1) // 2**63
        expected.append(tokens[start : start + 6])
    found = source(str(tmp_path / "list.txt")).sequences(7, 20, 6)
    assert found.tolist() == expected
    assert found.dtype == np.int64


@given(
    seed=st.integers(0, 2**63 - 1),
    batch_size=st.integers(1, 5),
    sequence_length=st.integers(1, 30),
)
def test_a_sequence_is_tokens_that_follow_each_other_in_the_files(
    tmp_path_factory, seed, batch_size, sequence_length
):
    folder = tmp_path_factory.mktemp("data")
    typed = pair(folder, [list(range(7)), list(range(7, 30))])
    opened = source(typed)
    found = opened.sequences(seed, batch_size, sequence_length)
    assert found.shape == (batch_size, sequence_length)
    assert (np.diff(found, axis=1) == 1).all()
    assert (source(typed).sequences(seed, batch_size, sequence_length) == found).all()


def test_a_step_is_the_same_whatever_was_drawn_before_it(tmp_path):
    typed = pair(tmp_path, [list(range(50))])
    opened = source(typed)
    first = opened.sequences(3, 4, 8)
    opened.sequences(4, 2, 5)
    assert (opened.sequences(3, 4, 8) == first).all()
    assert (opened.sequences(3, 2, 8) == first[:2]).all(), "a row depends on no other"
    assert (opened.sequences(4, 4, 8) != first).any()


def test_every_place_is_drawn_equally_often(tmp_path):
    opened = source(pair(tmp_path, [list(range(10))]))
    found = Counter(opened.sequences(1, 7000, 4)[:, 0].tolist())
    assert set(found) == set(range(7)), "the last place is one where a sequence still fits"
    assert all(abs(count - 1000) < 5 * 1000**0.5 for count in found.values())


def test_files_are_drawn_as_often_as_their_weights_say_whatever_their_size(tmp_path):
    for number, size in enumerate((1000, 5, 10)):
        write_pair(tmp_path / str(number), [[number] * size])
    (tmp_path / "list.txt").write_text("2 0 a\n1 1 a\n7 2 b\n")
    found = Counter(source(str(tmp_path / "list.txt")).sequences(1, 10_000, 5)[:, 0].tolist())
    for number, expected in enumerate((2000, 1000, 7000)):
        assert abs(found[number] - expected) < 5 * expected**0.5


def test_a_sequence_may_cross_from_one_document_into_the_next(tmp_path):
    opened = source(pair(tmp_path, [[1, 2], [3, 4]]))
    assert opened.sequences(1, 1, 4).tolist() == [[1, 2, 3, 4]]


def test_text_is_drawn_as_bytes_or_as_its_tokenizer_says(tmp_path):
    (tmp_path / "text").write_text("aé")
    assert source(str(tmp_path / "text"), 256).sequences(1, 1, 3).tolist() == [[97, 195, 169]]
    tokenizer = write_tokenizer(tmp_path / "t.json", ["aé"])
    assert source(str(tmp_path / "text"), 2, str(tokenizer)).sequences(1, 1, 1).tolist() == [[1]]


@pytest.mark.parametrize("length", [6, 7])
def test_fewer_tokens_than_a_sequence_are_refused_at_opening_and_when_drawn(tmp_path, length):
    typed = pair(tmp_path, [[1, 2], [3, 4, 5]])
    for draw in (
        lambda: source(typed, sequence_length=length),
        lambda: source(typed).sequences(1, 1, length),
    ):
        with pytest.raises(UsageError, match=rf"x' holds 5 tokens, fewer than the {length}"):
            draw()
    assert source(typed, sequence_length=5).sequences(1, 1, 5).tolist() == [[1, 2, 3, 4, 5]]


def test_one_short_file_of_a_list_is_named(tmp_path):
    write_pair(tmp_path / "long", [list(range(20))])
    write_pair(tmp_path / "short", [[1]])
    (tmp_path / "list.txt").write_text("1 long a\n1 short a\n")
    with pytest.raises(UsageError, match="short' holds 1 tokens"):
        source(str(tmp_path / "list.txt"), sequence_length=2)


@pytest.mark.parametrize(
    ("letter", "token"), [("H", 100), ("H", 65535), ("i", -1), ("b", -128), ("q", 2**62), ("q", -5)]
)
def test_a_token_outside_the_vocabulary_is_named_with_its_file_and_place(tmp_path, letter, token):
    opened = source(pair(tmp_path, [[1, 99, 0], [token, 100, 101]], letter))
    with pytest.raises(UsageError, match=rf"x': token 3 is {token}, .* vocabulary of 100"):
        opened.sequences(1, 1, 6)


def test_the_place_of_a_wrong_token_counts_from_the_beginning_of_the_file(tmp_path):
    opened = source(pair(tmp_path, [[1] * 50, [100] * 50]))
    with pytest.raises(UsageError, match=r"token (5\d|[6-9]\d) is 100"):
        opened.sequences(5, 64, 1)


def test_text_outside_the_vocabulary_is_refused_at_opening(tmp_path):
    (tmp_path / "text").write_bytes(b"\x01\x02\x7f")
    with pytest.raises(UsageError, match=r"token 2 is 127, .* vocabulary of 100"):
        source(str(tmp_path / "text"), 100)
    assert source(str(tmp_path / "text"), 128).sequences(1, 1, 3).tolist() == [[1, 2, 127]]


def test_data_that_changed_since_are_refused(tmp_path):
    data = describe(pair(tmp_path, [[1, 2, 3]]))
    pair(tmp_path, [[1, 2, 4]])
    with pytest.raises(RunFailedError, match=r"x' changed: digest"):
        open_tokens(data, 100)


def test_data_that_are_gone_or_damaged_since_are_refused(tmp_path):
    data = describe(pair(tmp_path, [[1, 2, 3]]))
    os.truncate(tmp_path / "x.bin", 4)
    with pytest.raises(RunFailedError, match=r"cannot be read again: .*cut short"):
        open_tokens(data, 100)
    (tmp_path / "x.bin").unlink()
    with pytest.raises(RunFailedError, match=r"cannot be read again: .*No such file"):
        open_tokens(data, 100)


def test_a_text_that_another_version_of_the_tokenizer_cuts_otherwise_is_refused(tmp_path):
    (tmp_path / "text").write_text("abc")
    data = describe(str(tmp_path / "text")).model_copy(update={"tokens": 2})
    with pytest.raises(RunFailedError, match="has 3 tokens, not 2: another version"):
        open_tokens(data, 256)


def test_a_file_cut_while_it_is_drawn_from_is_told_before_it_is_mapped(tmp_path):
    opened = source(pair(tmp_path, [[1, 2, 3]]))
    os.truncate(tmp_path / "x.bin", 4)
    with pytest.raises(RunFailedError, match="changed since"):
        opened.sequences(1, 1, 1)


def test_more_files_than_a_process_may_open_are_drawn_from(tmp_path):
    count = 200
    lines = []
    for number in range(count):
        write_pair(tmp_path / str(number), [[number] * 3])
        lines.append(f"1 {number} c\n")
    (tmp_path / "list.txt").write_text("".join(lines))
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    opened = len(os.listdir("/proc/self/fd"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (opened + 100, limits[1]))
    try:
        found = source(str(tmp_path / "list.txt"), 1000).sequences(1, 3000, 2)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert set(found[:, 0].tolist()) == set(range(count))
