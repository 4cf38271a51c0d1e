"""An honest run's steps are the worker's: the same gradients at the same places."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from llmb import clock
from llmb.config import BF16, FP16, FP32, Parallelism, Precision
from llmb.processes import stream_replay
from llmb.processes.loss_scale import FIRST, new_scaler
from llmb.processes.stream_replay import StreamReplay
from llmb.records import audited
from llmb.records.audited import LedgerEvidence, StepsEvidence
from tests.unit.builders_audit import Audited, small_vocabulary, worked

__all__ = ["small_vocabulary", "worked"]  # fixtures
pytestmark = pytest.mark.usefixtures("small_vocabulary")
STEPS = 13


def replay_of(found: Audited, **changes: Any) -> StreamReplay:
    kept = load_file(found.folder / audited.LEDGER_VALUES)
    steps = StepsEvidence.model_validate_json((found.folder / audited.STEPS).read_bytes())
    assert found.honest.stream is not None
    stream = found.honest.stream.model_copy(update=changes)
    overseer = SimpleNamespace(pause=lambda step, row, model, loss: None)
    ledger = LedgerEvidence.model_validate_json((found.folder / audited.LEDGER).read_bytes())
    where = kept[audited.WHERE]
    return StreamReplay(found.config, stream, where, ledger, steps.steps[0], overseer)


def shown(found: Audited) -> torch.Tensor:
    return load_file(found.folder / audited.LEDGER_VALUES)[audited.ROWS]


@pytest.mark.parametrize("precision", [FP32, BF16], ids=lambda p: p.name)
def test_replayed_steps_give_the_bits_that_the_worker_read(
    worked: Callable[..., Audited], precision: Precision
) -> None:
    found = worked(precision=precision)
    assert torch.equal(replay_of(found).rows(), shown(found))


def test_a_device_that_records_steps_is_waited_for_in_the_pause_and_after_the_step(
    worked: Callable[..., Audited],
) -> None:
    found, waited = worked(precision=FP32), list[int]()
    replay = replace(replay_of(found), finish=lambda: waited.append(1))
    rows = replay.rows()
    assert torch.equal(rows, shown(found))
    assert len(waited) == 2 * len(rows)


def test_with_accumulation_and_weights_in_float32_they_do_too(
    worked: Callable[..., Audited],
) -> None:
    mixed = BF16.model_copy(update={"master_weights": True})
    found = worked(precision=mixed, mixed_precision=True, batch_size=2, accumulate=2)
    assert torch.equal(replay_of(found).rows(), shown(found))


def test_the_loss_has_the_scale_of_a_rank_times_the_number_of_ranks(
    worked: Callable[..., Audited], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One process divides the loss of each rank's batch by the number of ranks."""
    scaled = FP16.model_copy(update={"master_weights": True})
    found = worked(precision=scaled, mixed_precision=True, batch_size=2, accumulate=2)
    scales = list[float]()

    def noted(device: str, **changes: Any) -> torch.amp.GradScaler:
        scaler = new_scaler(device, **changes)
        scales.append(scaler.state_dict()["scale"])
        return scaler

    monkeypatch.setattr(stream_replay, "new_scaler", noted)
    for ranks in (1, 3):
        mesh = {"parallelism": Parallelism(dp_replicate=ranks)}
        replace(replay_of(found, least=1), config=found.config.model_copy(update=mesh)).rows()
    assert scales == [FIRST, 3 * FIRST]


@pytest.mark.parametrize(
    "change",
    [
        lambda stream: {"rates": (1e-3, *stream.rates[1:])},
        lambda stream: {"token_seeds": (3, *stream.token_seeds[1:])},
    ],
    ids=["another rate", "other tokens"],
)
def test_another_first_step_changes_the_next(
    worked: Callable[..., Audited], change: Callable[[Any], dict[str, Any]]
) -> None:
    found = worked(precision=FP32)
    again = replay_of(found, **change(found.honest.stream)).rows()
    assert not torch.allclose(again[1], shown(found)[1], rtol=1e-3)


def test_without_time_it_ends_after_the_steps_that_must_be(worked: Callable[..., Audited]) -> None:
    assert len(replay_of(worked(precision=FP32), least=4).rows()) == 4


def test_with_time_it_replays_them_all(worked: Callable[..., Audited]) -> None:
    assert len(replay_of(worked(precision=FP32), least=4, seconds=600.0).rows()) == STEPS


def test_time_in_which_a_cpu_was_kept_from_work_does_not_count(
    worked: Callable[..., Audited], monkeypatch: pytest.MonkeyPatch
) -> None:
    hours = (hour * 3600 * 10**9 for hour in count())
    monkeypatch.setattr(clock, "now_ns", lambda: next(hours))
    replay = replay_of(worked(precision=FP32), least=4, seconds=600.0)
    assert len(replay.rows()) == STEPS


def test_where_there_is_no_canonical_element_the_gradient_is_zero(
    worked: Callable[..., Audited],
) -> None:
    replay = replay_of(worked(precision=FP32), least=1)
    where = replay.where.clone()
    where[0, :5] = -1
    assert not replace(replay, where=where).rows()[0, :5].any()


def test_what_does_not_fit_is_taken_in_more_pieces(
    worked: Callable[..., Audited], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = worked(precision=FP32)
    whole, tried = StreamReplay._rows, list[int]()

    def scarce(self: StreamReplay, parts: int) -> torch.Tensor:
        tried.append(parts)
        if parts == 1:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return whole(self, parts)

    monkeypatch.setattr(StreamReplay, "_rows", scarce)
    assert torch.allclose(replay_of(found).rows(), shown(found), rtol=1e-3, atol=1e-7)
    assert tried == [1, 2]
