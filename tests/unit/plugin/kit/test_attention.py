"""The chosen attention kernel is torch's setting from then on."""

from __future__ import annotations

import gc

import pytest
import torch

from llmb.plugin.kit import attention

SWITCHES = ("flash", "mem_efficient", "math", "cudnn")


def enabled() -> dict[str, bool]:
    backends = torch.backends.cuda
    return {name: getattr(backends, f"{name}_sdp_enabled")() for name in SWITCHES}


@pytest.fixture(autouse=True)
def _left_as_it_was():
    yield
    attention.choose("auto")


@pytest.mark.parametrize(
    ("choice", "switch"),
    [("flash", "flash"), ("efficient", "mem_efficient"), ("math", "math"), ("cudnn", "cudnn")],
)
def test_one_kernel_is_left_and_stays_chosen(choice: str, switch: str) -> None:
    attention.choose(choice)
    gc.collect(1)  # of what is young: a forgotten context would end here
    assert enabled() == {name: name == switch for name in SWITCHES}


def test_auto_leaves_the_choice_to_torch() -> None:
    before = enabled()
    attention.choose("math")
    attention.choose("auto")
    assert enabled() == before
    assert sum(before.values()) > 1


def test_a_second_choice_replaces_the_first() -> None:
    attention.choose("flash")
    attention.choose("math")
    assert enabled()["math"]
    assert not enabled()["flash"]


def test_a_program_compiled_for_another_kernel_is_not_found_again() -> None:
    tags = []
    for choice in ("auto", "math", "flash", "auto"):
        attention.choose(choice)
        tags.append(torch.compiler.config.cache_key_tag)
    assert tags[0] == tags[3]
    assert len(set(tags)) == 3
