"""Whole weights in one file: what is read is what was written, and nothing that was altered."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from llmb.errors import RunFailedError
from llmb.observe.weights_file import WeightsFile, file_digest, write


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


def test_the_digest_returned_is_that_of_the_file(path: Path) -> None:
    digest = write(path, WEIGHTS.items())
    assert digest == file_digest(path) == hashlib.sha256(path.read_bytes()).hexdigest()


def test_a_generator_is_as_good_as_a_list(path: Path) -> None:
    listed = write(path, list(WEIGHTS.items()))
    assert write(path, (item for item in WEIGHTS.items())) == listed


@pytest.mark.parametrize("where", [0, 8, 100, -1])
def test_one_altered_byte_is_refused_before_anything_is_read(path: Path, where: int) -> None:
    digest = write(path, WEIGHTS.items())
    data = bytearray(path.read_bytes())
    data[where] ^= 1
    path.write_bytes(data)
    with pytest.raises(RunFailedError, match=r"weights\.safetensors .* altered"):
        WeightsFile(path, digest)


def test_a_file_that_grew_or_shrank_is_refused(path: Path) -> None:
    digest = write(path, WEIGHTS.items())
    data = path.read_bytes()
    for other in (data + b"\0", data[:-1], b""):
        path.write_bytes(other)
        with pytest.raises(RunFailedError, match="altered"):
            WeightsFile(path, digest)


def test_a_file_that_is_not_there_is_a_failed_run_that_names_it(path: Path) -> None:
    with pytest.raises(RunFailedError, match=r"weights\.safetensors cannot be read: No such file"):
        WeightsFile(path, "0" * 64)


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
        file_digest(tmp_path / "weights.safetensors")
    assert str(tmp_path) not in str(caught.value)
