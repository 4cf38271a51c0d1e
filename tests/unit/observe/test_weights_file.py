"""Whole weights in one file: what is read is what was written, and nothing that was altered."""

from __future__ import annotations

import hashlib
import json
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from llmb.errors import RunFailedError
from llmb.observe import weights_file
from llmb.observe.weights_file import WeightsFile, checked_bytes, write


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


WEIGHTS = {
    "model.embed.weight": random(7, 5).bfloat16(),
    "transposed": random(3, 4, seed=1).t(),
    "norm": random(5, seed=2).double(),
    "half": random(2, 2, 3, seed=3).half(),
    "one": torch.tensor(2.5),
    "none": torch.zeros(0, 4),
    "ünï": random(3),
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "weights.safetensors"


def test_every_tensor_is_read_back_bit_for_bit_in_its_own_type(path: Path) -> None:
    digest = write(path, WEIGHTS.items())
    with WeightsFile(path, digest) as file:
        assert set(file.names) == set(WEIGHTS)
        for name, value in WEIGHTS.items():
            found = file.read(name)
            assert (found.dtype, found.shape) == (value.dtype, value.shape)
            assert torch.equal(found, value)


def test_the_file_is_what_the_formats_own_library_reads(path: Path) -> None:
    write(path, WEIGHTS.items())
    found = load_file(path)
    assert {name: torch.equal(found[name], value) for name, value in WEIGHTS.items()} == (
        dict.fromkeys(WEIGHTS, True)
    )


def test_the_digest_returned_is_that_of_the_header_which_has_one_for_every_tensor(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(weights_file, "_PART", 16)
    digest = write(path, WEIGHTS.items())
    data = path.read_bytes()
    length = 8 + int.from_bytes(data[:8], "little")
    assert digest == hashlib.sha256(data[:length]).hexdigest()
    header = json.loads(data[8:length])
    assert set(header["__metadata__"]) == set(WEIGHTS)
    begin, end = header["norm"]["data_offsets"]  # 40 bytes: parts of 16, 16 and 8
    norm = data[length + begin : length + end]
    parts = b"".join(hashlib.sha256(norm[at : at + 16]).digest() for at in (0, 16, 32))
    assert header["__metadata__"]["norm"] == hashlib.sha256(parts).hexdigest()


@pytest.mark.parametrize("part", [1, 7, 2**23])
def test_parts_of_any_size_are_put_together_in_their_order(
    path: Path, monkeypatch: pytest.MonkeyPatch, part: int
) -> None:
    monkeypatch.setattr(weights_file, "_PART", part)
    value = torch.arange(1000).reshape(10, 100).float()
    with WeightsFile(path, write(path, [("w", value)])) as file:
        assert torch.equal(file.read("w"), value)


def test_a_generator_is_as_good_as_a_list(path: Path) -> None:
    listed = write(path, list(WEIGHTS.items()))
    assert write(path, (item for item in WEIGHTS.items())) == listed


def test_with_their_names_given_one_value_at_a_time_is_in_memory(path: Path) -> None:
    before: list[weakref.ref[Tensor]] = []

    def made() -> Iterator[tuple[str, Tensor]]:
        for name, value in WEIGHTS.items():
            assert [one() for one in before[:-1]] == [None] * len(before[:-1])
            new = value.clone()
            before.append(weakref.ref(new))
            yield name, new
            del new

    digest = write(path, made(), names=tuple(WEIGHTS), alone=True)
    assert len(before) == len(WEIGHTS)
    assert write(path, WEIGHTS.items()) == digest


ALTERED = r"weights\.safetensors is not what the worker wrote: it was altered"


def flip(path: Path, where: int) -> None:
    data = bytearray(path.read_bytes())
    data[where] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("where", [0, 8, 100])
def test_one_altered_byte_of_the_header_is_refused_before_anything_is_read(
    path: Path, where: int
) -> None:
    digest = write(path, WEIGHTS.items())
    flip(path, where)
    with pytest.raises(RunFailedError, match=ALTERED):
        WeightsFile(path, digest)


def test_one_altered_byte_of_a_tensor_is_refused_when_that_tensor_is_read(path: Path) -> None:
    digest = write(path, WEIGHTS.items())
    flip(path, -1)
    with WeightsFile(path, digest) as file:
        assert torch.equal(file.read("norm"), WEIGHTS["norm"])
        with pytest.raises(RunFailedError, match=ALTERED):
            file.read("ünï")


def test_a_tensor_that_is_altered_between_two_readings_is_refused_in_a_shared_file(
    path: Path,
) -> None:
    digest = write(path, WEIGHTS.items())
    with WeightsFile(path, digest, shared=True) as shared, WeightsFile(path, digest) as own:
        assert torch.equal(shared.read("ünï"), own.read("ünï"))
        flip(path, -1)
        with pytest.raises(RunFailedError, match=ALTERED):
            shared.read("ünï")
        assert not torch.equal(own.read("ünï"), WEIGHTS["ünï"]), "nobody is there to alter it"


def test_a_file_that_grew_or_shrank_is_refused(path: Path) -> None:
    digest = write(path, WEIGHTS.items())
    data = path.read_bytes()
    for other in (data + b"\0", data[:-1], data[:50], b""):
        path.write_bytes(other)
        with pytest.raises(RunFailedError, match=ALTERED):
            WeightsFile(path, digest)


def test_a_header_that_is_changed_between_its_check_and_the_reading_is_refused(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    value = torch.arange(6).reshape(2, 3).float()
    digest = write(path, [("w", value)])
    honest = path.read_bytes()
    real = weights_file.safe_open

    def change_it_first(*arguments: Any, **options: Any) -> Any:
        path.write_bytes(honest.replace(b"[2, 3]", b"[3, 2]"))
        return real(*arguments, **options)

    monkeypatch.setattr(weights_file, "safe_open", change_it_first)
    with WeightsFile(path, digest) as file, pytest.raises(RunFailedError, match=ALTERED):
        file.read("w")


def test_a_file_that_is_not_there_is_a_failed_run_that_names_it(path: Path) -> None:
    for read in (WeightsFile, checked_bytes):
        with pytest.raises(
            RunFailedError, match=r"weights\.safetensors cannot be read: No such file"
        ):
            read(path, "0" * 64)


def test_the_bytes_of_a_small_file_are_those_that_were_announced_or_none(path: Path) -> None:
    path.write_bytes(b"steps")
    digest = hashlib.sha256(b"steps").hexdigest()
    assert checked_bytes(path, digest) == b"steps"
    path.write_bytes(b"other")
    with pytest.raises(RunFailedError, match=ALTERED):
        checked_bytes(path, digest)


def test_a_tensor_that_is_not_there_is_named(path: Path) -> None:
    with (
        WeightsFile(path, write(path, WEIGHTS.items())) as file,
        pytest.raises(RunFailedError, match=r"no value of lm_head\.weight"),
    ):
        file.read("lm_head.weight")


@pytest.mark.parametrize("dtype", [torch.int8, torch.float8_e4m3fn, torch.complex64])
def test_a_type_that_no_weight_has_is_refused_by_name_and_nothing_written(
    path: Path, dtype: torch.dtype
) -> None:
    with pytest.raises(RunFailedError, match=rf"w is stored as {dtype}, which llmb cannot audit"):
        write(path, [("w", torch.zeros(2, dtype=dtype))])
    assert not path.exists()


def test_where_nothing_can_be_written_the_message_says_what_to_do(tmp_path: Path) -> None:
    gone = tmp_path / "gone" / "weights.safetensors"
    with pytest.raises(RunFailedError, match=r"cannot write weights.* choose another --output-dir"):
        write(gone, WEIGHTS.items())


def test_names_of_files_do_not_tell_where_they_lie(tmp_path: Path) -> None:
    with pytest.raises(RunFailedError) as caught:
        checked_bytes(tmp_path / "weights.safetensors", "0" * 64)
    assert str(tmp_path) not in str(caught.value)
