"""An honest run's calls are the worker's: the same logits at the same places."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from llmb.config import BF16, FP32, Mode, Precision
from llmb.processes.call_replay import CallReplay
from llmb.records import audited
from tests.unit.builders_audit import END, Audited, small_vocabulary, worked

__all__ = ["small_vocabulary", "worked"]  # fixtures
pytestmark = pytest.mark.usefixtures("small_vocabulary")
FORWARD: dict[str, Any] = {"mode": Mode.FORWARD}
GENERATE: dict[str, Any] = {
    "mode": Mode.GENERATE,
    "prompt_length": 3,
    "new_tokens": 5,
    "generate_scope": "step",
}


def shown(found: Audited) -> torch.Tensor:
    return load_file(found.folder / audited.LEDGER_VALUES)[audited.ROWS]


def replay_of(found: Audited, look: Callable[[int], None] = print, **changes: Any) -> CallReplay:
    assert found.honest.calls is not None
    calls = found.honest.calls.model_copy(update=changes)
    return CallReplay(found.config, calls, shown(found)[: len(calls.calls)], look)


@pytest.mark.parametrize("precision", [FP32, BF16], ids=lambda p: p.name)
def test_calls_made_again_give_the_bits_that_the_worker_read(
    worked: Callable[..., Audited], precision: Precision
) -> None:
    found = worked(precision=precision, **FORWARD)
    assert torch.equal(replay_of(found).rows(), shown(found))


def test_calls_of_several_lengths_do_too(worked: Callable[..., Audited]) -> None:
    found = worked(precision=FP32, dynamic=True, **FORWARD)
    assert torch.equal(replay_of(found).rows(), shown(found))


def test_a_sample_made_again_without_a_cache_is_as_near_as_rounding(
    worked: Callable[..., Audited],
) -> None:
    found = worked(precision=FP32, **GENERATE)
    assert torch.allclose(replay_of(found).rows(), shown(found), rtol=1e-4, atol=1e-6)


def test_words_drawn_again_are_the_workers_and_stand_in_the_row_with_their_seed(
    worked: Callable[..., Audited],
) -> None:
    found = worked(precision=FP32, **GENERATE)
    assert torch.equal(replay_of(found).rows()[:, -12:], shown(found)[:, -12:])


@pytest.mark.parametrize("parts", [1, 2])
def test_words_that_were_not_drawn_are_told_by_their_noise(
    worked: Callable[..., Audited], parts: int
) -> None:
    found = worked(precision=FP32, batch_size=2, **GENERATE)
    replay = replay_of(found)
    right = replay._rows(parts)[:, -12:-2]
    assert torch.equal(right, shown(found)[: len(right), -12:-2])
    replay.read[:, -12:-2] = 17
    made_up = replay._rows(parts)[:, -12:-2]
    assert (made_up != 17).float().mean() > 0.5


def test_a_batch_in_parts_gives_the_same_logits(worked: Callable[..., Audited]) -> None:
    found = worked(precision=FP32, batch_size=4, **FORWARD)
    assert torch.allclose(replay_of(found)._rows(2), shown(found), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("changed", ["token_seed", "places"])
def test_a_call_with_another_seed_gives_other_logits(
    worked: Callable[..., Audited], changed: str
) -> None:
    found = worked(precision=FP32, **FORWARD)
    assert found.honest.calls is not None
    first, *others = found.honest.calls.calls
    calls = (first.model_copy(update={changed: 3}), *others)
    rows, right = replay_of(found, calls=calls).rows(), shown(found)
    assert [torch.equal(*pair) for pair in zip(rows, right, strict=True)] == [False] + [True] * 12


def test_calls_are_made_again_in_the_order_that_was_drawn(worked: Callable[..., Audited]) -> None:
    found, looked = worked(precision=FP32, **FORWARD), list[int]()
    replay_of(found, looked.append).rows()
    assert found.honest.calls is not None
    assert looked == [call.index for call in found.honest.calls.calls]
    assert sorted(looked) == [*range(END + 1)] != looked


def test_no_call_is_begun_after_the_time_beyond_the_least(worked: Callable[..., Audited]) -> None:
    found = worked(precision=FP32, **FORWARD)
    assert len(replay_of(found, least=4, seconds=0.0).rows()) == 4
