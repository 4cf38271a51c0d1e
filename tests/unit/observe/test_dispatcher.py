"""Kernels registered over torch's are seen, with the key and the place of their registration."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch.library import Library

from llmb.observe.dispatcher import FALLBACK, KernelChange, Kernels

pytestmark = pytest.mark.filterwarnings("ignore:Warning only once for all operators")


@pytest.fixture(scope="module")
def before() -> Kernels:
    torch.vmap(torch.sin)(torch.ones(1))  # the first registers kernels of torch's own
    return Kernels()


@pytest.fixture
def library() -> Iterator[Library]:
    library = Library("aten", "IMPL")
    yield library
    library._destroy()


def test_nothing_has_changed_where_nothing_was_registered(before: Kernels) -> None:
    assert before.changes(Kernels()) == ()
    assert len(before) > 3000


def test_a_kernel_put_over_torchs_is_seen_with_its_key_and_file(
    before: Kernels, library: Library
) -> None:
    library.impl("mm", lambda a, b: a, "CPU")
    (change,) = before.changes(Kernels())
    assert change == KernelChange("torch.ops.aten.mm", "CPU", change.place, replaces=True)
    assert change.place in (__file__, "/dev/null")  # torch 2.8 does not tell


def test_a_kernel_that_was_taken_away_again_is_no_change(before: Kernels) -> None:
    library = Library("aten", "IMPL")
    library.impl("mm", lambda a, b: a, "CPU")
    library._destroy()
    assert before.changes(Kernels()) == ()


def test_an_overload_is_named_as_python_calls_it(before: Kernels, library: Library) -> None:
    library.impl("add.Tensor", lambda a, b, alpha=1: a, "AutogradCPU")
    (change,) = before.changes(Kernels())
    assert (change.name, change.dispatch_key) == ("torch.ops.aten.add.Tensor", "AutogradCPU")
    assert not change.replaces
    assert not change.supports_a_device  # the CPU's


def test_a_kernel_registered_through_torchs_own_helper_is_not_torchs(before: Kernels) -> None:
    with torch.library._scoped_library("aten", "FRAGMENT") as library:
        torch.library.impl("aten::silu", "cpu", lambda x: x, lib=library)
        (change,) = before.changes(Kernels())
    assert (change.name, change.dispatch_key) == ("torch.ops.aten.silu", "CPU")


def test_a_kernel_for_a_device_that_torch_has_none_for_replaces_nothing(
    before: Kernels, library: Library
) -> None:
    for key in ("PrivateUse1", "AutogradPrivateUse1"):
        library.impl("mm", lambda a, b: a, key)
    assert [change.supports_a_device for change in before.changes(Kernels())] == [True, True]


def test_a_kernel_put_over_one_of_torchs_for_a_device_replaces_it(before: Kernels) -> None:
    key = "AutocastCUDA"  # in every build
    with torch.library._scoped_library("aten", "IMPL") as library:
        library.impl("mm", lambda a, b: a, key)
        (change,) = before.changes(Kernels())
    assert change.replaces
    assert not change.supports_a_device


def test_an_operator_in_a_space_of_its_own_replaces_nothing(before: Kernels) -> None:
    with torch.library._scoped_library("acme", "DEF") as library:
        library.define("fast(Tensor x) -> Tensor")
        library.impl("fast", lambda x: x, "CPU")
        assert before.changes(Kernels()) == ()


def test_a_new_operator_among_torchs_own_replaces_nothing(before: Kernels) -> None:
    with torch.library._scoped_library("aten", "FRAGMENT") as library:
        library.define("acme_fast(Tensor x) -> Tensor")
        library.impl("acme_fast", lambda x: x, "CPU")
        assert before.changes(Kernels()) == ()


def test_a_fallback_of_a_dispatch_key_is_seen(before: Kernels) -> None:
    with torch.library._scoped_library("_", "IMPL") as library:
        library.fallback(lambda op, *arguments, **named: op(*arguments, **named), "CPU")
        (change,) = before.changes(Kernels())
    assert (change.name, change.dispatch_key) == (FALLBACK, "CPU")
