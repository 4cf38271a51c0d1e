"""Every error on purpose has the exit code that records.md promises."""

from __future__ import annotations

import pytest

from llmb import errors


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        (errors.LlmbError, 1),
        (errors.UsageError, 2),
        (errors.UnavailableError, 3),
        (errors.RunFailedError, 4),
        (errors.NotEnoughMemoryError, 4),
        (errors.AuditInvalidError, 5),
        (errors.BundleRefusedError, 6),
        (errors.RequirementError, 7),
        (errors.ConformanceError, 8),
    ],
)
def test_each_error_ends_in_its_documented_exit_code(
    kind: type[errors.LlmbError], code: int
) -> None:
    assert issubclass(kind, errors.LlmbError)
    assert kind("message").exit_code == code


def test_running_out_of_memory_is_a_failed_run() -> None:
    assert issubclass(errors.NotEnoughMemoryError, errors.RunFailedError)


def test_the_tree_in_the_docstring_names_every_error_with_its_code() -> None:
    assert errors.__doc__
    drawn = [line.split() for line in errors.__doc__.splitlines() if "Error " in line]
    for name, kind in vars(errors).items():
        if isinstance(kind, type) and issubclass(kind, errors.LlmbError):
            (line,) = (words for words in drawn if name in words)
            assert line[line.index(name) + 1] == str(kind.exit_code)


class OutOfMemoryError(RuntimeError):
    """Named like the class that torch raises on accelerators."""


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (MemoryError(), True),
        (OutOfMemoryError("tried to allocate 9 GiB"), True),
        (RuntimeError("BLAS error: BLAS_STATUS_ALLOC_FAILED when calling create(handle)"), True),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried 9 bytes"), True),
        (RuntimeError("WARP Out Of Memory"), True),
        (OSError(12, "not enough memory"), True),
        (RuntimeError("shape mismatch"), False),
        (ValueError("memory_format must be contiguous"), False),
        (KeyboardInterrupt(), False),
    ],
    ids=repr,
)
def test_running_out_of_memory_is_told_by_class_or_words_on_any_device(
    error: BaseException, expected: bool
) -> None:
    assert errors.is_out_of_memory(error) is expected


@pytest.mark.parametrize(
    ("typed", "names"),
    [
        ("llama-1.4", ["llama-1.4b"]),
        ("Lama-1.4B", ["llama-1.4b"]),
        ("gpt2", ["gpt2-125m", "gpt2-350m"]),
        ("bert", ["nemo-bert-base"]),
        ("--nporc", ["--nproc"]),
        ("--epochs", []),
        ("zzz", []),
        ("-", []),
        ("", []),
    ],
)
def test_the_nearest_names_are_few_and_never_far(typed: str, names: list[str]) -> None:
    known = ["llama-1.4b", "llama-45m", "gpt2-125m", "gpt2-350m", "nemo-bert-base", "--nproc"]
    assert errors.nearest(typed, known) == names


def test_an_error_message_ends_with_the_nearest_names_if_there_are_any() -> None:
    assert errors.did_you_mean("gtp2", ["gpt2", "bert"]) == "; did you mean gpt2?"
    assert errors.did_you_mean("x", ["gpt2"]) == ""
