"""Weighted lists: what is read, what is refused with its line, and what is no list."""

from __future__ import annotations

from pathlib import Path

import pytest

from llmb.errors import UsageError
from llmb.inputs.file_list import looks_like_list, read_list


def list_of(tmp_path, text):
    path = tmp_path / "list.txt"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_weights_are_normalised_and_prefixes_count_from_the_list(tmp_path):
    lines = "# a comment", "", "1 a/x web", " 3\t/data/y.v2.bin  books\r", "1e0 ../z.idx c"
    path = list_of(tmp_path, "\n".join(lines))
    found = read_list(path)
    assert [entry.weight for entry in found] == [0.2, 0.6, 0.2]
    prefixes = [tmp_path / "a/x", Path("/data/y.v2"), tmp_path / "../z"]
    assert [entry.prefix for entry in found] == prefixes
    assert [entry.corpus for entry in found] == ["web", "books", "c"]
    assert [entry.line for entry in found] == [3, 4, 5]


def test_a_list_as_long_as_that_of_dolma_is_read(tmp_path):
    path = list_of(tmp_path, "".join(f"0.000413393 dolma/part-{n} c\n" for n in range(2419)))
    found = read_list(path)
    assert len(found) == 2419
    assert sum(entry.weight for entry in found) == pytest.approx(1)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("1 x\n", ["line 1", "2 words", "text:"]),
        ("1 x c\n\n1 x c d\n", ["line 3", "4 words"]),
        ("0 x c", ["line 1", "'0'", "positive"]),
        ("-1 x c", ["'-1'"]),
        ("nan x c", ["'nan'"]),
        ("inf x c", ["'inf'"]),
        ("1 x c\nmuch x c", ["line 2", "'much'"]),
        ("1e308 x c\n1e308 x c", ["more than a number holds"]),
        ("", ["lists no files"]),
        ("# only this\n", ["lists no files"]),
        (b"1 x \xff", ["line 1", "UTF-8"]),
        (b"1 x c\n" + b"x" * 70000, ["line 2", "longer"]),
    ],
    ids=lambda value: repr(value)[:20],
)
def test_a_list_that_cannot_be_meant_is_refused_with_its_line(tmp_path, text, words):
    path = list_of(tmp_path, text)
    with pytest.raises(UsageError) as caught:
        read_list(path)
    for word in (str(path), *words):
        assert word in str(caught.value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("# first\n\n0.5 x c\n", True),
        ("0.5 x c\nand this is a fault, not text\n", True),
        ("Once upon a time\n", False),
        ("Three blind mice\n", False),
        ("1 x\n", False),
        ("", False),
        ("# heading\n\nText.\n", False),
        (b"\xff\xfe", False),
        (b"1" * 70000, False),
    ],
    ids=lambda value: repr(value)[:20],
)
def test_the_first_line_that_says_something_makes_a_list(tmp_path, text, expected):
    assert looks_like_list(list_of(tmp_path, text)) == expected
