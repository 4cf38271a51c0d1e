"""Numbers out of safetensors files without torch: exact, and never more than was written."""

from __future__ import annotations

import json
import math
import struct
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import load, save

from llmb.records import arrays


def file_of(**tensors: tuple[str, list[int], bytes]) -> bytes:
    """Return a file written by hand: eight bytes of length, a JSON header, the data."""
    header, data = {}, b""
    for name, (dtype, shape, values) in tensors.items():
        offsets = [len(data), len(data) + len(values)]
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": offsets}
        data += values
    return header_of(header) + data


def header_of(entries: dict[str, object]) -> bytes:
    text = json.dumps(entries).encode()
    return struct.pack("<Q", len(text)) + text


def floats(*values: float) -> bytes:
    return struct.pack(f"<{len(values)}f", *values)


def test_float32_arrays_are_read_flat_by_name() -> None:
    data = file_of(
        a=("F32", [2, 3], floats(1, 2, 3, 4, 5, 6)), **{"5/b": ("F32", [1], floats(-0.1))}
    )
    found = arrays.read(data)
    assert set(found) == {"a", "5/b"}
    assert list(found["a"]) == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
    assert list(found["5/b"]) == [struct.unpack("<f", floats(-0.1))[0]]
    assert len(found["a"]) == 6
    assert list(found["a"][1:3]) == [2.0, 3.0]


def test_every_number_of_sixteen_bits_comes_through_exactly() -> None:
    values = [struct.unpack("<f", struct.pack("<I", bits << 16))[0] for bits in range(0, 65536, 7)]
    data = file_of(a=("F32", [len(values)], floats(*values)))
    for read, written in zip(arrays.read(data)["a"], values, strict=True):
        assert read == written or (math.isnan(read) and math.isnan(written))


def test_what_is_no_number_stays_none() -> None:
    found = arrays.read(file_of(a=("F32", [3], floats(math.nan, math.inf, -math.inf))))["a"]
    assert math.isnan(found[0])
    assert list(found[1:]) == [math.inf, -math.inf]


def test_arrays_of_other_types_are_left_out() -> None:
    data = file_of(
        wide=("F64", [1], b"\0" * 8),
        narrow=("F16", [2], b"\0" * 4),
        whole=("I64", [1], b"\0" * 8),
        short=("I8", [2], b"\0" * 2),
        none=("U8", [0], b""),
        a=("F32", [1], floats(1)),
    )
    assert set(arrays.read(data)) == {"a"}


def test_whole_numbers_are_read_alone() -> None:
    data = file_of(
        short=("I32", [2], b"\xff\xff\xff\xff\7\0\0\0"),
        long=("I64", [1], b"\5" + b"\0" * 7),
        a=("F32", [1], floats(1)),
    )
    found = {name: [*values] for name, values in arrays.read_integers(data).items()}
    assert found == {"short": [-1, 7], "long": [5]}


# -- smaller (docs/adr/0057) ------------------------------------------------------------------


def test_bfloat16_is_stored_in_two_bytes_and_read_as_it_was() -> None:
    values = torch.randn(1000, generator=torch.Generator().manual_seed(1)).bfloat16().float()
    values[:4] = torch.tensor([math.inf, -0.0, 0.0, -math.inf])
    short = arrays.as_bfloat16(arrays.floats((1000,), values.tolist()))
    assert (short.dtype, len(short.data)) == ("BF16", 2000)
    found = arrays.read(arrays.file_of({"a": short}))["a"]
    assert bytes(found) == values.numpy().tobytes()
    assert load(arrays.file_of({"a": short}))["a"].equal(values.bfloat16())


def test_one_number_that_is_no_bfloat16_leaves_all_as_they_are() -> None:
    one = arrays.floats((3,), [1.0, 1.0 + 2.0**-20, 0.5])
    assert arrays.as_bfloat16(one) is one


def test_rounding_to_bfloat16_is_torchs() -> None:
    values = torch.randn(5000, generator=torch.Generator().manual_seed(2))
    values[:3] = torch.tensor([1 + 2.0**-8, 1 + 3 * 2.0**-8, 1e-40])
    short = arrays.as_bfloat16(arrays.floats((5000,), values.tolist()), rounded=True)
    assert load(arrays.file_of({"a": short}))["a"].equal(values.bfloat16())


def test_nothing_finite_is_rounded_to_infinity() -> None:
    short = arrays.as_bfloat16(arrays.floats((2,), [3.4e38, -3.4e38]), rounded=True)
    assert all(map(math.isfinite, arrays.values(short)))


def test_a_nan_is_not_rounded_away() -> None:
    one = arrays.floats((2,), [math.nan, 1 + 2.0**-20])
    assert arrays.as_bfloat16(one, rounded=True) is one


def test_a_difference_keeps_the_distance() -> None:
    generator = torch.Generator().manual_seed(3)
    right = torch.randn(1024, generator=generator)
    worker = right + 0.006 * torch.randn(1024, generator=generator)
    short, scale = arrays.difference(worker.tolist(), right.tolist())
    data = arrays.file_of(
        {"a": short, arrays.SCALES: arrays.floats((1,), [scale]), "b": arrays.apart(0.25)}
    )
    found = arrays.read_reduced(data)
    assert found["b"] == arrays.Apart((0.25,))
    again = arrays.resolved(found, {"a": worker.tolist()})["a"]
    exact = math.dist(worker.tolist(), right.tolist())
    assert math.dist(worker.tolist(), again) == pytest.approx(exact, rel=1e-3)
    with pytest.raises(ValueError, match=r"shorter|longer"):
        arrays.resolved(found, {"a": worker[:-1].tolist()})
    with pytest.raises(ValueError, match=r"shorter|longer"):
        arrays.resolved(found, {})


def test_a_difference_without_a_scale_is_refused() -> None:
    short, _ = arrays.difference([1.0], [0.5])
    with pytest.raises(ValueError, match="array 'a' has no scale"):
        arrays.read_reduced(arrays.file_of({"a": short}))


def test_an_array_without_elements_and_a_file_without_arrays_are_fine() -> None:
    assert len(arrays.read(file_of(a=("F32", [0, 4], b"")))["a"]) == 0
    assert arrays.read(file_of()) == {}


GOOD = file_of(a=("F32", [2], floats(1, 2)), b=("F32", [1], floats(3)))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\0" * 8,
        b"hello",
        GOOD[:-1],
        GOOD + b"\0",
        GOOD[: len(GOOD) // 2],
        GOOD.replace(b'"F32"', b'"F99"', 1),
        GOOD.replace(b"[2]", b"[9]", 1),
        b"\xff" * 8 + GOOD[8:],
        struct.pack("<Q", 2**62) + b"{}",
        struct.pack("<Q", 3) + b"[1]",
    ],
)
def test_garbage_is_a_value_error(data: bytes) -> None:
    with pytest.raises(ValueError, match="not a safetensors file"):
        arrays.read(data)


@pytest.mark.parametrize(
    "offsets", [[0, 2**40], [4, 0], [-4, 0], [0, 3]], ids=["beyond", "backwards", "negative", "odd"]
)
def test_a_header_that_lies_about_its_data_is_a_value_error(offsets: list[int]) -> None:
    entry = {"dtype": "F32", "shape": [1], "data_offsets": offsets}
    with pytest.raises(ValueError, match="not a safetensors file"):
        arrays.read(header_of({"a": entry}) + floats(1))


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused_and_never_a_crash(data: bytes) -> None:
    try:
        found = arrays.read(data)
    except ValueError:
        return
    assert all(isinstance(name, str) for name in found)


@given(st.integers(0, len(GOOD) - 1), st.integers(0, 255))
def test_one_changed_byte_is_read_or_refused_and_never_a_crash(where: int, byte: int) -> None:
    data = GOOD[:where] + bytes([byte]) + GOOD[where + 1 :]
    try:
        found = arrays.read(data)
    except ValueError:
        return
    assert sum(map(len, found.values())) <= 3


def test_an_array_too_long_to_be_a_sample_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrays, "MAX_ELEMENTS", 3)
    assert len(arrays.read(file_of(a=("F32", [3], floats(1, 2, 3))))["a"]) == 3
    with pytest.raises(ValueError, match="array 'a' has more than 3 numbers"):
        arrays.read(file_of(a=("F32", [4], floats(1, 2, 3, 4))))


# -- whole tensors, as they are stored ------------------------------------------------------


def test_tensors_of_several_files_are_one_that_any_reader_of_safetensors_reads(
    tmp_path: Path,
) -> None:
    first = {"a/x": torch.arange(6.0).view(2, 3), "other": torch.arange(3)}
    second = {"b/x": torch.tensor([0.5, -2.0])}
    for name, tensors in (("1", first), ("2", second)):
        (tmp_path / name).write_bytes(save(tensors))
    found = arrays.stored(tmp_path / "1") | arrays.stored(tmp_path / "2")
    assert {*found} == {"a/x", "b/x"}, "those of other types are left out"
    target = tmp_path / "both.safetensors"
    arrays.write(found, target, {"rule": "E2"})
    read = load(target.read_bytes())
    assert torch.equal(read["a/x"], first["a/x"])
    assert torch.equal(read["b/x"], second["b/x"])
    with safe_open(target, "pt") as file:
        assert file.metadata() == {"rule": "E2"}


def test_a_sample_is_spread_over_the_tensor_and_is_all_of_a_small_one(tmp_path: Path) -> None:
    (tmp_path / "1").write_bytes(save({"a": torch.arange(100.0)}))
    one = arrays.stored(tmp_path / "1")["a"]
    assert (one.shape, one.elements) == ((100,), 100)
    assert list(one.sample(100)) == list(range(100))
    assert list(one.sample(5)) == [0, 20, 40, 60, 80]


def test_many_arrays_and_long_headers_are_refused_before_they_are_parsed(monkeypatch) -> None:
    def parsed(data: bytes) -> None:
        raise AssertionError("it was parsed")

    monkeypatch.setattr(arrays, "deserialize", parsed)
    with pytest.raises(ValueError, match="a header of 99999999 bytes, more than 8388608"):
        arrays.read(struct.pack("<Q", 99_999_999) + b"{}")
    many = {f"a{n}": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]} for n in range(50_002)}
    with pytest.raises(ValueError, match="more than 50000 arrays"):
        arrays.read(header_of(many))


def numbers(seed: int, count: int = 100) -> bytes:
    return floats(*(seed + n / 7 for n in range(count)))


def test_the_digest_of_what_a_file_says_passes_over_order_blanks_and_metadata() -> None:
    one, other = numbers(1), numbers(2)
    plain = file_of(a=("F32", [100], one), b=("F32", [10, 10], other))
    turned = file_of(b=("F32", [10, 10], other), a=("F32", [100], one))
    header = {
        "__metadata__": {"by": "Mallory"},
        "b": {"shape": [10, 10], "data_offsets": [400, 800], "dtype": "F32"},
        "a": {"shape": [100], "data_offsets": [0, 400], "dtype": "F32"},
    }
    spaced = json.dumps(header, indent=3).encode()
    spaced = struct.pack("<Q", len(spaced)) + spaced + one + other
    digests = {arrays.content_digest(data) for data in (plain, turned, spaced)}
    assert len({plain, turned, spaced}) == 3
    assert len(digests) == 1


def test_the_digest_of_what_a_file_says_is_another_where_anything_it_says_is() -> None:
    one, other = numbers(1), numbers(2)
    files = [
        file_of(a=("F32", [100], one)),
        file_of(a=("F32", [100], other)),
        file_of(b=("F32", [100], one)),
        file_of(a=("F32", [10, 10], one)),
        file_of(a=("I32", [100], one)),
        file_of(a=("F32", [100], one), b=("F32", [0], b"")),
    ]
    digests = [arrays.content_digest(data) for data in files]
    assert None not in digests
    assert len(set(digests)) == len(files)


def test_a_file_with_few_different_numbers_tells_nothing_of_its_run() -> None:
    assert arrays.content_digest(file_of(a=("F32", [63], numbers(1, 63)))) is None
    assert arrays.content_digest(file_of(a=("F32", [64], numbers(1, 64)))) is not None
    assert arrays.content_digest(file_of(a=("F32", [5000], floats(*[0.0] * 5000)))) is None
    assert arrays.content_digest(header_of({})) is None
