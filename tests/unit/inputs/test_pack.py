"""Text is packed into the tokens it is read as; what cannot be packed leaves nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmb.errors import UsageError
from llmb.inputs import pack as pack_module
from llmb.inputs import text
from llmb.inputs.contents import describe
from llmb.inputs.indexed import open_indexed
from llmb.inputs.pack import Order, pack
from llmb.inputs.tokens import open_tokens
from tests.unit.builders_inputs import write_tokenizer


def inputs_of(folder: Path, *contents: bytes) -> tuple[Path, ...]:
    paths = [folder / f"{number}.txt" for number in range(len(contents))]
    for path, content in zip(paths, contents, strict=True):
        path.write_bytes(content)
    return tuple(paths)


def tokens_of(prefix):
    return open_indexed(prefix).read().tolist()


@settings(deadline=None)  # a file system may be slow
@given(contents=st.lists(st.binary(), min_size=1), eos=st.none() | st.integers(0, 300))
def test_packed_bytes_are_the_bytes_of_the_inputs_in_their_order(tmp_path_factory, contents, eos):
    folder = tmp_path_factory.mktemp("text")
    order = Order(inputs_of(folder, *contents), folder / "out/x", eos=eos)
    full = [content for content in contents if content]
    if not full:
        with pytest.raises(UsageError, match="nothing to write"):
            pack(order)
        return
    packed = pack(order)
    end = [] if eos is None else [eos]
    assert tokens_of(folder / "out/x") == [t for content in full for t in [*content, *end]]
    assert (packed.documents, packed.empty) == (len(full), len(contents) - len(full))
    assert packed.vocab_size == max(256, (eos or 0) + 1)
    assert open_indexed(folder / "out/x").documents == len(full)


def test_packed_text_and_the_text_itself_give_the_same_sequences(tmp_path):
    (path,) = inputs_of(tmp_path, b"Once upon a time there was a benchmark.\n" * 50)
    tokenizer = str(write_tokenizer(tmp_path / "t.json", ["Once", "upon", "a", "time", "."]))
    for name, size in (("bytes", 256), (tokenizer, 6)):
        pack(Order((path,), tmp_path / "x", name, force=True))
        packed = open_tokens(describe(str(tmp_path / "x")), size).sequences(1, 8, 30)
        plain = open_tokens(describe(str(path), name), size).sequences(1, 8, 30)
        assert (packed == plain).all()


def test_every_line_is_a_document_without_what_ends_it(tmp_path):
    inputs = inputs_of(tmp_path, b"ab\n\nc\r\n", b"d")
    packed = pack(Order(inputs, tmp_path / "x", lines=True, eos=0))
    assert tokens_of(tmp_path / "x") == [97, 98, 0, 99, 0, 100, 0]
    assert (packed.documents, packed.empty) == (3, 1)


def test_a_file_of_several_pieces_is_one_document(tmp_path, monkeypatch):
    monkeypatch.setattr(text, "PIECE_BYTES", 3)
    monkeypatch.setattr(pack_module, "PIECE_BYTES", 3)
    inputs, done = inputs_of(tmp_path, b"abcdefgh\nij\nk", b"lm"), []
    packed = pack(Order(inputs, tmp_path / "x", eos=10), done.append)
    assert bytes(tokens_of(tmp_path / "x")) == b"abcdefgh\nij\nk\nlm\n"
    assert (packed.documents, packed.tokens) == (2, 17)
    assert done == sorted(done)
    assert done[-1] == 15, "bytes of all inputs"
    assert len(done) > 3


@pytest.mark.parametrize("output", ["x.bin", "x.idx", "x"])
def test_the_output_may_carry_the_ending_of_a_file(tmp_path, output):
    inputs = inputs_of(tmp_path, b"a")
    assert pack(Order(inputs, tmp_path / output)).prefix == tmp_path / "x"
    assert tokens_of(tmp_path / "x") == [97]


def test_a_large_vocabulary_is_written_in_four_bytes(tmp_path):
    inputs = inputs_of(tmp_path, b"ab")
    assert pack(Order(inputs, tmp_path / "x", vocab_size=65499)).dtype == "uint16"
    assert pack(Order(inputs, tmp_path / "y", vocab_size=65500)).dtype == "int32"
    assert pack(Order(inputs, tmp_path / "z", eos=70000)).vocab_size == 70001
    assert tokens_of(tmp_path / "z") == [97, 98, 70000]


@pytest.mark.parametrize(
    ("content", "change", "words"),
    [
        (b"ab\x80", {"vocab_size": 128}, ["0.txt", "token 128", "--vocab-size 128"]),
        (b"ab", {"vocab_size": 0}, ["--vocab-size 0"]),
        (b"ab", {"vocab_size": 2**31 + 1}, ["--vocab-size 2147483649"]),
        (b"ab", {"eos": -1}, ["--eos -1"]),
        (b"ab", {"eos": 300, "vocab_size": 300}, ["--eos 300", "300"]),
        (b"ab", {"eos": 2**31}, ["2147483649"]),
        (b"", {}, ["nothing to write", "0.txt"]),
        (b"\n\n", {"lines": True}, ["nothing to write"]),
        (b"ab", {"tokenizer": "nope.json"}, ["nope.json"]),
        (b"ab", {"tokenizer": ""}, ["folder"]),
    ],
    ids=str,
)
def test_what_cannot_be_packed_is_refused_and_leaves_nothing(tmp_path, content, change, words):
    order = Order(inputs_of(tmp_path, content), tmp_path / "x", **change)
    with pytest.raises(UsageError) as caught:
        pack(order)
    for word in words:
        assert word in str(caught.value)
    assert [path.name for path in tmp_path.iterdir()] == ["0.txt"]


def test_a_missing_input_is_told_before_anything_is_read(tmp_path):
    (path,) = inputs_of(tmp_path, b"a")
    with pytest.raises(UsageError, match="gone"):
        pack(Order((path, tmp_path / "gone"), tmp_path / "x"))
    assert list(tmp_path.iterdir()) == [path]


def test_an_input_is_never_overwritten_even_by_force(tmp_path):
    path = tmp_path / "x.bin"
    path.write_bytes(b"text")
    with pytest.raises(UsageError, match="would overwrite the input"):
        pack(Order((path,), tmp_path / "x", force=True))
    assert path.read_bytes() == b"text"


def test_an_output_that_is_a_folder_is_refused(tmp_path):
    with pytest.raises(UsageError, match="give a prefix"):
        pack(Order(inputs_of(tmp_path, b"a"), tmp_path))


@pytest.mark.parametrize("name", ["a\nb", "\udcff"], ids=ascii)
def test_an_output_that_cannot_be_written_down_is_refused_before_anything_is(tmp_path, name):
    with pytest.raises(UsageError, match="not readable text"):
        pack(Order(inputs_of(tmp_path, b"a"), tmp_path / name))
    assert [path.name for path in tmp_path.iterdir()] == ["0.txt"]


def test_packing_twice_gives_the_same_bytes(tmp_path):
    inputs = inputs_of(tmp_path, b"some text\n" * 100)
    for name in ("x", "y"):
        pack(Order(inputs, tmp_path / name, lines=True))
    for suffix in ("bin", "idx"):
        assert (tmp_path / f"x.{suffix}").read_bytes() == (tmp_path / f"y.{suffix}").read_bytes()
